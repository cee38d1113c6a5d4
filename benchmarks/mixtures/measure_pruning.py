"""Removes half of the experts of a mixture with random weights with both programs and prints time, memory and agreement as Markdown."""
import argparse
import json
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Also uses the comparison's code to run both programs and make text, and the demo's model.
sys.path[1:1] = [str(HERE.parent / "peer_comparison"), str(HERE.parents[1] / "examples" / "demo")]

import compare  # noqa: E402
from contenders import HERE as PEER  # noqa: E402
from contenders import PEER_PYTHON, PROGRAM, Job  # noqa: E402
from make_checkpoint import SHAPES, make  # noqa: E402
from measured_process import Measured, run_measured  # noqa: E402
from report import machine, table  # noqa: E402
from shared_options import add_cpu_option, add_shared_options, check_text, model_and_text, print_result  # noqa: E402

SPARSITY = 0.5
GPTQ = {"GPTQModifier": {"scheme": "W4A16", "ignore": ["lm_head", "re:.*mlp.gate$"]}}
JOBS = {"alone": {}, "before GPTQ": GPTQ}
PROGRAMS = ("LLM Compressor", "Layerpress")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/expert_pruning", description=__doc__)
    add_shared_options(parser, "each program", "expert_pruning")
    add_cpu_option(parser)
    arguments = parser.parse_args()
    check_text(parser, arguments)
    return arguments


def report_of(job: Job, program: str, name: str) -> Path:
    return job.work / f"{program} {name}.kept.json".replace(" ", "-")


def write_recipe(job: Job, program: str, name: str) -> Path:
    path = job.work / f"{program} {name}.recipe.json".replace(" ", "-")
    pruning = {"REAPPruningModifier": {"sparsity": SPARSITY, "report_path": str(report_of(job, program, name))}}
    stages = {"a_stage": {"a_modifiers": pruning}, **({"b_stage": {"b_modifiers": JOBS[name]}} if JOBS[name] else {})}
    path.write_text(json.dumps(stages), encoding="utf-8")
    return path


def command(job: Job, program: str, name: str) -> list[str]:
    recipe, output = write_recipe(job, program, name), job.work / f"{program} {name}".replace(" ", "-")
    if program == "Layerpress":
        return [str(PROGRAM), "oneshot", str(job.model), "--output", str(output), "--overwrite", "--no-progress", "--recipe", str(recipe),
                "--dataset", str(job.calibration), "--num-calibration-samples", str(job.samples), "--max-seq-length",
                str(job.max_seq_length)]
    return [str(PEER_PYTHON), str(PEER / "peer_oneshot.py"), "--model", str(job.model), "--calibration", str(job.calibration), "--output",
            str(output), "--summary", str(output) + ".summary.json", "--recipe", str(recipe), "--dtype", job.peer_dtype, "--samples",
            str(job.samples), "--max-seq-length", str(job.max_seq_length)]


def agreement(job: Job, name: str) -> str:
    """The share of kept experts that both programs keep, layer by layer."""
    ours, theirs = (json.loads(report_of(job, program, name).read_text(encoding="utf-8")) for program in ("Layerpress", "LLM Compressor"))
    if ours.keys() != theirs.keys():
        raise ValueError(f"[expert_pruning] the reports name other layers: {sorted(ours.keys() ^ theirs.keys())}")
    return ", ".join(f"{len(set(kept) & set(theirs[layer]))} of {len(kept)}" for layer, kept in ours.items())


def row(name: str, program: str, runs: list[Measured], rival: list[Measured]) -> list[str]:
    seconds, theirs = (statistics.median(run.seconds for run in each) for each in (runs, rival))
    peak, most = (max(run.peak_bytes for run in each) for each in (runs, rival))
    ratios = ["-", "-"] if program != "Layerpress" else [f"{theirs / seconds:.2f}x", f"{peak / most:.2f}"]
    return [f"{program}, {name}", f"{seconds:.1f}", ratios[0], f"{peak / 2**20:.0f}", ratios[1]]


def measure(arguments: argparse.Namespace) -> str:
    tokenizer, calibration, _ = model_and_text(arguments, None)
    work = arguments.work.resolve()
    job = Job(make(work / "small", "small", tokenizer), calibration, arguments.samples, arguments.max_seq_length, 128, work, arguments.cpu)
    compare.check_tokens(job)
    rows, agreed = [], []
    for name in JOBS:
        runs: dict[str, list[Measured]] = {program: [] for program in PROGRAMS}
        for _ in range(arguments.runs):
            for program in PROGRAMS:
                runs[program].append(run_measured(command(job, program, name), job.environment, work / f"{program}.log".replace(" ", "-")))
                compare.say(f"{program}, {name}: {runs[program][-1].seconds:.1f} s")
        rows += [row(name, program, runs[program], runs["LLM Compressor"]) for program in PROGRAMS]
        agreed.append(f"Kept by both programs, {name}, layer by layer: {agreement(job, name)}.")
    shape = SHAPES["small"]
    return "\n\n".join([
        f"{shape['num_experts']} experts of {shape['moe_intermediate_size']} in {shape['num_hidden_layers']} layers, "
        f"{shape['num_experts_per_tok']} per token, hidden {shape['hidden_size']}, random weights; half of the experts are removed; "
        f"{arguments.samples} samples of up to {arguments.max_seq_length} tokens. On {machine()}.",
        table(["", "seconds", "faster", "peak MB", "ratio"], rows), *agreed]) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
