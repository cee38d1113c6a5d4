"""Prints a line per model and number of ranks: slowest rank, largest memory, time to save, and the result's score.
See benchmarks/distributed/table."""
import argparse
import sys
from pathlib import Path

from ranked_options import add_options, check_options, job_of
from ranked_process import RankedRuns, Task, evaluate, flexible_extract, run_once, say
from report import machine, table
from shared_options import print_result

HEADER = ["model_id", "world_size", "max_time", "max_memory", "save_time", "flex_extract", "eval_time"]


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/distributed/table", description=__doc__)
    parser.add_argument("models", type=Path, nargs="*", metavar="MODEL", help="default: the demo's SmolLM2-135M-Instruct")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4], help="numbers of ranks (default 1 2 4)")
    parser.add_argument("--task", default="gsm8k", help="of lm-evaluation-harness, with a filter flexible-extract (default gsm8k)")
    parser.add_argument("--task-folder", type=Path, help="folder with further tasks (YAML)")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers", help="what runs the task (default transformers)")
    parser.add_argument("--limit", type=int, default=0, help="documents of the task (default: all)")
    add_options(parser)
    arguments = parser.parse_args(words)
    check_options(parser, arguments)
    return arguments


def score(runs: RankedRuns, task: Task) -> str:
    """The task's if its data is available; otherwise other measures, labelled as such."""
    found = flexible_extract(runs, task)
    if found is not None:
        return f"{found:.4f}"
    evaluate(runs)
    return f"KL {runs.quality['kl_divergence']:.4f}, perplexity {runs.quality['perplexity']:.2f}"


def row(runs: RankedRuns, found: str) -> list[str]:
    return [runs.job.model.name, str(runs.ranks), f"{runs.seconds:.2f}", f"{runs.largest('peak_bytes') / 1e9:.2f}",
            f"{runs.largest('save_seconds'):.2f}", found, f"{runs.evaluation_seconds:.2f}"]


def measure(arguments: argparse.Namespace) -> str:
    task = Task(arguments.task, arguments.task_folder, arguments.limit, arguments.engine)
    rows = []
    for model in arguments.models or [None]:
        job = job_of(arguments, model)
        for ranks in arguments.ranks:
            runs = RankedRuns(ranks, job)
            for _ in range(arguments.runs):
                run_once(runs)
            rows.append(row(runs, score(runs, task)))
            say(" ".join(rows[-1]))
    intro = (f"Made by `benchmarks/distributed/table` on {machine()}: GPTQ W4A16, {arguments.samples} samples of up to "
             f"{arguments.max_seq_length} tokens, {arguments.threads or 'the program-chosen number of'} thread(s) per rank. "
             f"flex_extract is that of {task.name}, or other measures where its data is not on the machine. "
             "Times in seconds and memory in GB (largest resident set, mapped pages included) are the maxima over ranks.")
    return f"{intro}\n\n{table(HEADER, rows)}\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
