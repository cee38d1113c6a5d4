"""Prints a line per model and number of ranks: slowest rank, largest memory, time to save, and the result's score.
See benchmarks/distributed/table."""
import argparse
import sys
from pathlib import Path

from ranked_process import RankedRuns, evaluate, find_local_gsm8k, flexible_extract, run_once, say

from ranked_options import add_options, check_options, job_of
from report import machine, table
from shared_options import print_result

HEADER = ["model_id", "world_size", "max_time", "max_memory", "save_time", "flex_extract", "eval_time"]


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/distributed/table", description=__doc__)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL", help="default: the demo's SmolLM2-135M-Instruct")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks (default 1 2 4)")
    parser.add_argument("--limit", type=int, default=0, help="questions of gsm8k (default: all)")
    add_options(parser)
    arguments = parser.parse_args(words)
    check_options(parser, arguments)
    return arguments


def score(runs: RankedRuns, with_task: bool, limit: int) -> str:
    """gsm8k if its data is available; otherwise other measures, labelled as such."""
    if with_task:
        return f"{flexible_extract(runs, limit):.4f}"
    evaluate(runs)
    return f"KL {runs.quality['kl_divergence']:.4f}, perplexity {runs.quality['perplexity']:.2f}"


def row(runs: RankedRuns, found: str) -> list[str]:
    return [runs.job.model.name, str(runs.ranks), f"{runs.seconds:.2f}", f"{runs.largest('peak_bytes') / 1e9:.2f}",
            f"{runs.largest('save_seconds'):.2f}", found, f"{runs.evaluation_seconds:.2f}"]


def measure(arguments: argparse.Namespace) -> str:
    with_task = find_local_gsm8k()
    if not with_task:
        say("gsm8k is not in the local datasets cache: the column flex_extract has KL divergence and perplexity")
    rows = []
    for model in arguments.models or [None]:
        job = job_of(arguments, model)
        for ranks in arguments.ranks:
            runs = RankedRuns(ranks, job)
            for _ in range(arguments.runs):
                run_once(runs)
            rows.append(row(runs, score(runs, with_task, arguments.limit)))
            say(" ".join(rows[-1]))
    intro = (f"Made by `benchmarks/distributed/table` on {machine()}: GPTQ W4A16, {arguments.samples} samples of up to "
             f"{arguments.max_seq_length} tokens, {arguments.threads or 'the program-chosen number of'} thread(s) per rank. "
             "Times in seconds and memory in GB (largest resident set, mapped pages included) are the maxima over ranks.")
    return f"{intro}\n\n{table(HEADER, rows)}\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
