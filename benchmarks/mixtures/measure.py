"""Compresses mixtures of experts with random weights and prints time, memory and quality as Markdown."""
import argparse
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Also uses the comparison's code to run both programs and make text, and the demo's model.
sys.path[1:1] = [str(HERE.parent / "peer_comparison"), str(HERE.parents[1] / "examples" / "demo")]

import compare  # noqa: E402
from contenders import OFFLINE, PYTHON, Contender, Job, command, run_once  # noqa: E402
from make_checkpoint import SHAPES, make  # noqa: E402
from measured_process import run_measured  # noqa: E402
from report import contender_table, machine, phase_table, table  # noqa: E402
from shared_options import add_cpu_option, add_shared_options, check_text, model_and_text, print_result  # noqa: E402

MOST_LAYERS = 48  # of Qwen3-30B-A3B
RIVALS = [Contender("LLM Compressor", "gptq", "minmax"), Contender("Layerpress", "gptq", "minmax", rival="minmax"),
          Contender("Layerpress", "gptq", "hessian", rival="minmax")]
# Command-line options for each way of cutting and calibrating.
LINEAR_BY_LINEAR = "all tokens, `--sequential-targets Linear`"
WAYS = {
    "all tokens, whole layers": [],
    LINEAR_BY_LINEAR: ["--sequential-targets", "Linear"],
    "all tokens, 6 linears at a time": ["--sequential-targets", "Linear", "--sequential-targets-per-subgraph", "6"],
    "routed tokens": ["--no-moe-calibrate-all-experts"],
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/moe", description=__doc__)
    add_shared_options(parser, "each program", "moe")
    parser.set_defaults(group_size=128)
    add_cpu_option(parser)
    parser.add_argument("--skip-peer", action="store_true", help="run Layerpress alone")
    parser.add_argument("--skip-wide", action="store_true", help="leave out the layers with the shape of Qwen3-30B-A3B")
    arguments = parser.parse_args()
    check_text(parser, arguments)
    return arguments


def rivals(arguments: argparse.Namespace, job: Job, evaluation: Path) -> str:
    chosen = [rival for rival in RIVALS if rival.program == "Layerpress" or not arguments.skip_peer]
    compare.check_tokens(job)
    for _ in range(arguments.runs):
        for contender in chosen:
            run_once(contender, job)
            compare.say(f"{contender.name}: {contender.runs[-1].seconds:.1f} s")
    compare.evaluate(job, chosen, arguments, evaluation)
    limit = compare.measure_limit(job)
    return "\n\n".join([contender_table(chosen), error_table(job, chosen), phase_table(chosen[-1], limit.gflops)])


def error_table(job: Job, chosen: list[Contender]) -> str:
    folders = {str(contender.output(job)): contender for contender in chosen}
    measured = run_measured([str(PYTHON), str(HERE / "linear_errors.py"), "--base", str(job.model), "--text",
                             str(job.calibration), "--samples", str(job.samples), "--max-seq-length",
                             str(job.max_seq_length), *folders], OFFLINE, job.work / "errors.log")
    errors = json.loads(measured.output)
    modules = list(next(iter(errors.values())))
    rows = [[f"{contender.program} {contender.observer}"] + [f"{errors[folder][module]:.4f}" for module in modules]
            for folder, contender in folders.items()]
    return table(["relative error of the output of"] + [module.removeprefix("model.layers.0.") for module in modules], rows)


def run_way(job: Job, options: list[str]) -> dict:
    contender = Contender("Layerpress", "gptq", "hessian")
    summary = job.work / "way.summary.json"
    measured = run_measured(command(contender, job, summary) + options, job.environment, job.work / "way.log")
    figures = json.loads(summary.read_text(encoding="utf-8"))
    return {"seconds": measured.seconds, "anonymous": figures["peak_anonymous_bytes"], "figures": figures,
            "planned": figures["plan"]["peak_bytes"]}


def ways(job: Job) -> str:
    rows = []
    for name, options in WAYS.items():
        result = run_way(job, options)
        compare.say(f"{name}: {result['seconds']:.1f} s")
        rows.append([name, f"{result['seconds']:.1f}", f"{result['anonymous'] / 2**20:.0f}",
                     f"{result['planned'] / 2**20:.0f}"])
    return table(["", "seconds", "peak anonymous memory, MiB", "planned, MiB"], rows)


def in_layers(figures: dict) -> float:
    """Seconds without the work that is done once for all layers."""
    return sum(phase["seconds"] for name, phase in figures["phases"].items()
               if name not in ("open", "plan", "data", "finish"))


def seconds_per_layer(job: Job, arguments: argparse.Namespace, model: Path) -> str:
    wide = Job(model, job.calibration, arguments.samples, arguments.max_seq_length, 128, job.work, job.cpu)
    layers = SHAPES["wide"]["num_hidden_layers"]
    rows, whole = [], None
    for name in ("all tokens, whole layers", LINEAR_BY_LINEAR):
        result = run_way(wide, WAYS[name])
        whole = whole or result
        seconds = in_layers(result["figures"]) / layers
        compare.say(f"{name}: {seconds:.1f} s per layer")
        rows.append([name, f"{seconds:.0f}", f"{seconds * MOST_LAYERS / 60:.0f}", f"{result['anonymous'] / 2**20:.0f}",
                     f"{result['planned'] / 2**20:.0f}"])
    phases = {name: phase["seconds"] / layers for name, phase in whole["figures"]["phases"].items()}
    return "\n\n".join([
        table(["", "seconds per layer", f"minutes for {MOST_LAYERS} layers", "peak anonymous memory, MiB",
               "planned, MiB"], rows),
        "Whole layers, phase by phase:",
        table(["phase", "seconds per layer"],
              [[name, f"{seconds:.1f}"] for name, seconds in phases.items() if seconds >= 0.05])])


def measure(arguments: argparse.Namespace) -> str:
    tokenizer, calibration, evaluation = model_and_text(arguments, None)
    work = arguments.work.resolve()
    small = make(work / "small", "small", tokenizer)
    job = Job(small, calibration, arguments.samples, arguments.max_seq_length, arguments.group_size, work, arguments.cpu)
    shape = SHAPES["small"]
    parts = [f"Qwen3-MoE with random weights: hidden {shape['hidden_size']}, {shape['num_hidden_layers']} layers, "
             f"{shape['num_experts']} experts of {shape['moe_intermediate_size']}, {shape['num_experts_per_tok']} per token; "
             f"{arguments.samples} samples of up to {arguments.max_seq_length} tokens, 4-bit weights in groups of "
             f"{arguments.group_size}, all experts calibrated on all tokens. On {machine()}.",
             rivals(arguments, job, evaluation), "Layerpress with smaller subgraphs and with routed tokens:", ways(job)]
    if not arguments.skip_wide:
        wide = SHAPES["wide"]
        model = make(work / "wide", "wide", tokenizer)
        parts += [f"{wide['num_hidden_layers']} layers with the shape of Qwen3-30B-A3B (hidden {wide['hidden_size']}, "
                  f"{wide['num_experts']} experts of {wide['moe_intermediate_size']}, {wide['num_experts_per_tok']} per token), "
                  "the same samples:",
                  seconds_per_layer(job, arguments, model)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
