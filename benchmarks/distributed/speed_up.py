"""Measures speed-up per phase, and time, quality and bytes by number of ranks. See benchmarks/distributed/run."""
import argparse
import statistics
import sys
from pathlib import Path

import scale
from cost_model import Job, sent_bytes
from ranked_options import add_options, check_options, job_of
from ranked_process import STEPS, RankedJob, RankedRuns, evaluate, run_once, say, unrelated_seconds
from report import machine, table
from shapes import shape_of_checkpoint
from shared_options import print_result


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/distributed/run", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 4, 8], help="numbers of ranks; 1 is always run")
    parser.add_argument("--skip-evaluation", action="store_true", help="times, memory and bytes only")
    add_options(parser)
    arguments = parser.parse_args(words)
    check_options(parser, arguments)
    arguments.ranks = sorted({1, *arguments.ranks})
    return arguments


def phase_table(one: RankedRuns, two: RankedRuns) -> str:
    rows = []
    figures = [(step, one.step_seconds(step), two.step_seconds(step)) for step in STEPS]
    figures += [("start, data and the rest", one.rest_seconds(), two.rest_seconds()), ("all", one.seconds, two.seconds)]
    for step, alone, shared in figures:
        gain = f"{alone / shared:.2f}x" if min(alone, shared) > 0.005 else "-"
        rows.append([step, f"{alone:.2f}", f"{shared:.2f}", gain])
    return table(["phase", "1 rank, s", f"{two.ranks} ranks, s", "faster"], rows)


def expected_bytes(runs: RankedRuns) -> float:
    """Bytes per rank according to the formula."""
    return sent_bytes(shape_of_checkpoint(runs.job.model), Job(runs.job.samples, runs.job.max_seq_length, 4, runs.job.group_size),
                      runs.ranks)


def count_row(runs: RankedRuns, one: RankedRuns) -> list[str]:
    sent, formula = runs.largest("sent_bytes"), expected_bytes(runs)
    everywhere = sorted(runs.loopback_bytes)[len(runs.loopback_bytes) // 2]
    quality = runs.quality
    change = f"{quality['kl_divergence'] / one.quality['kl_divergence'] - 1:+.1%}" if quality else "-"
    return [str(runs.ranks), f"{runs.seconds:.2f}", f"{one.seconds / runs.seconds:.2f}x",
            f"{sorted(runs.wall_seconds)[len(runs.wall_seconds) // 2]:.1f}",
            f"{runs.largest('peak_anonymous_bytes') / 2**20:.0f}", f"{runs.largest('save_seconds'):.2f}",
            f"{runs.largest('wait_seconds'):.2f}", f"{sent / 1e6:.1f}", f"{formula / 1e6:.1f}",
            f"{everywhere / runs.ranks / 1e6:.1f}" if runs.ranks > 1 else "-",
            f"{quality['kl_divergence']:.4f}" if quality else "-", change,
            f"{quality['perplexity']:.2f}" if quality else "-"]


def count_table(measured: list[RankedRuns]) -> str:
    header = ["ranks", "seconds", "faster", "with torchrun", "peak MiB", "save s", "waited s", "MB sent per rank", "formula",
              "on loopback per rank", "KL to base", "change", "perplexity"]
    return table(header, [count_row(runs, measured[0]) for runs in measured])


def bound_of(two: RankedRuns, unrelated: list[float]) -> str:
    """Two ranks against two processes that exchange nothing."""
    shares = [bound / seconds for bound, seconds in zip(unrelated, two.largest_by_run("seconds"))]
    return (f"Two independent concurrent processes, each with half of the samples and all of the solver's work, take "
            f"{statistics.median(unrelated):.2f} s. Two ranks reach {statistics.median(shares):.1%} of their speed, the median of "
            f"{len(shares)} neighbouring run(s) ({min(shares):.1%} to {max(shares):.1%}).")


def check_of(measured: list[RankedRuns], group_size: int) -> str:
    """Compares prediction and measurement."""
    files = [str(runs.summary_file) for runs in measured]
    arguments = scale.parse_arguments(["--check", *files, "--group-size", str(group_size)])
    return scale.check(arguments.check, arguments)


def markdown(job: RankedJob, measured: list[RankedRuns], unrelated: list[float]) -> str:
    intro = (f"Made by `benchmarks/distributed/run` on {machine()}: {job.model.name}, GPTQ W4A16 in groups of {job.group_size}, "
             f"{job.samples} samples of up to {job.max_seq_length} tokens, {job.threads or 'the program-chosen number of'} "
             f"thread(s) per rank. Seconds are the slowest rank's, the median of {len(measured[0].summaries)} run(s); *with "
             "torchrun* is the wall time of launcher and ranks. More ranks than cores take turns.")
    parts = [intro, count_table(measured)]
    for shared in measured:
        if shared.ranks == 2:
            parts += [phase_table(measured[0], shared), bound_of(shared, unrelated)]
    return "\n\n".join([*parts, check_of(measured, job.group_size)]) + "\n"


def measure(arguments: argparse.Namespace) -> str:
    job = job_of(arguments, arguments.model)
    measured = [RankedRuns(ranks, job) for ranks in arguments.ranks]
    unrelated = []
    for turn in range(arguments.runs):
        for runs in measured:
            run_once(runs)
            say(f"run {turn + 1} of {arguments.runs}: {runs.ranks} ranks: {runs.seconds:.1f} s")
            if runs.ranks == 2:
                unrelated.append(unrelated_seconds(job, 2))
                say(f"run {turn + 1} of {arguments.runs}: 2 independent processes: {unrelated[-1]:.1f} s")
    if not arguments.skip_evaluation:
        for runs in measured:
            evaluate(runs)
    return markdown(job, measured, unrelated)


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
