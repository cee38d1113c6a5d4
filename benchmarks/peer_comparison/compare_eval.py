"""Measures a model's perplexity with `layerpress eval` and with transformers, in turns, and prints times as Markdown.

    .venv/bin/python benchmarks/peer_comparison/compare_eval.py [--cpu avx2]

LLM Compressor has no such command; transformers is what its users evaluate with. The program must be built.
"""
import argparse
import json
import statistics
import sys
from pathlib import Path

# Also uses the demo's model and its measurement of processes.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from contenders import HERE, PROGRAM, PYTHON, Job
from measured_process import Measured, run_measured
from report import machine, table
from shared_options import add_cpu_option, add_shared_options, check_text, model_and_text, print_result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    add_shared_options(parser, "both programs", "eval_comparison")
    add_cpu_option(parser)
    arguments = parser.parse_args()
    check_text(parser, arguments)
    return arguments


def commands(job: Job, evaluation: Path, samples: int) -> dict[str, list[str]]:
    length = str(job.max_seq_length)
    return {
        "transformers": [str(PYTHON), str(HERE / "torch_perplexity.py"), "--model", str(job.model), "--evaluation",
                         str(evaluation), "--samples", str(samples), "--max-seq-length", length, "--dtype", job.peer_dtype],
        "Layerpress": [str(PROGRAM), "eval", str(job.model), "--dataset", str(evaluation), "--num-samples", str(samples),
                       "--max-seq-length", length, "--no-progress"],
    }


def row(name: str, runs: list[Measured], rival: float) -> list[str]:
    seconds = statistics.median(run.seconds for run in runs)
    peak = max(run.peak_bytes for run in runs) / 2**20
    return [name, f"{seconds:.1f}", f"{rival / seconds:.2f}x", f"{peak:.0f}", f"{json.loads(runs[-1].output)['perplexity']:.3f}"]


def compare(arguments: argparse.Namespace) -> str:
    model, calibration, evaluation = model_and_text(arguments, arguments.model)
    samples = arguments.evaluation_samples
    job = Job(model, calibration, 0, arguments.max_seq_length, 0, arguments.work.resolve(), arguments.cpu)
    turns = commands(job, evaluation, samples)
    runs = {name: [] for name in turns}
    for _ in range(arguments.runs):
        for name, command in turns.items():
            runs[name].append(run_measured(command, job.environment, job.work / f"{name}.log"))
            print(f"{name}: {runs[name][-1].seconds:.1f} s", file=sys.stderr, flush=True)
    rival = statistics.median(run.seconds for run in runs["transformers"])
    return "\n\n".join([
        f"{model.name}, perplexity on {samples} samples of up to {job.max_seq_length} tokens, "
        f"{'all instructions' if job.cpu is None else job.cpu}, transformers in {'its own dtype' if job.cpu is None else job.peer_dtype}; "
        f"whole processes, medians of {arguments.runs} run(s). On {machine()}.",
        table(["", "seconds", "faster", "peak MiB", "perplexity"], [row(name, own, rival) for name, own in runs.items()])]) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(compare, parse_arguments()))
