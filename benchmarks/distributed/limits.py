"""The limits of scaling on this machine: how much independent processes slow each other down, and how long a
run takes to start with very many tensors. See benchmarks/distributed/limits."""
import argparse
import json
import sys
from pathlib import Path

from ranked_process import RankedJob, launcher, say, unrelated_seconds

sys.path.append(str(Path(__file__).resolve().parents[1] / "memory_cases"))

from contenders import OFFLINE, PROGRAM
from llama_checkpoint import LlamaShape, make_checkpoint
from measured_process import run_measured
from ranked_options import add_options, check_options, job_of
from report import machine, table
from shared_options import print_result


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/distributed/limits", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2], help="numbers of ranks to start (default 1 2)")
    parser.add_argument("--layers", type=int, default=5556, help="of the checkpoint to start with, nine tensors each (default 5556)")
    add_options(parser)
    arguments = parser.parse_args(words)
    check_options(parser, arguments)
    return arguments


def ceiling(job: RankedJob, turns: int) -> str:
    alone = min(unrelated_seconds(job, 1) for _ in range(turns))
    together = min(unrelated_seconds(job, 2) for _ in range(turns))
    say(f"alone {alone:.1f} s, two at once {together:.1f} s")
    return (f"Half of the samples take one process {alone:.2f} s alone and {together:.2f} s beside another such process, the best "
            f"of {turns} run(s): two ranks can be {2 * alone / together:.2f} times as fast as one at most.")


def start_phases(model: Path, ranks: int, work: Path) -> list[str]:
    """Seconds of the slowest rank before the work begins."""
    summary = work / f"start-{ranks}.json"
    run_measured([*launcher(ranks), str(PROGRAM), "oneshot", str(model), "--output", str(work / "started"), "--overwrite",
                  "--algorithm", "rtn", "--scheme", "W8A16", "--group-size", "16", "--threads", "1", "--no-progress",
                  "--summary", str(summary)], OFFLINE, work / "start.log")
    found = json.loads(summary.read_text(encoding="utf-8"))["ranks"]
    slowest = {phase: max(rank["phases"][phase]["seconds"] for rank in found) for phase in ("open", "plan")}
    return [str(ranks), f"{slowest['open']:.2f}", f"{slowest['plan']:.2f}", f"{max(rank['seconds'] for rank in found):.2f}"]


def start_table(arguments: argparse.Namespace, work: Path) -> str:
    shape = LlamaShape(num_hidden_layers=arguments.layers, hidden_size=16, intermediate_size=32, num_attention_heads=2,
                       num_key_value_heads=2, vocab_size=64, max_position_embeddings=128)
    model = work / f"layers-{arguments.layers}"
    make_checkpoint(model, shape)
    rows = [start_phases(model, ranks, work) for ranks in arguments.ranks]
    header = ["ranks", "open, trace and assign, s", "plan and lay out, s", "whole data-free run, s"]
    return f"Start with {len(shape.tensors())} tensors:\n\n{table(header, rows)}"


def measure(arguments: argparse.Namespace) -> str:
    job = job_of(arguments, arguments.model)
    parts = [f"Made by `benchmarks/distributed/limits` on {machine()}.", ceiling(job, arguments.runs),
             start_table(arguments, job.work)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
