"""Measures how other work on the same cores slows a run down, and prints Markdown. See benchmarks/contention."""
import argparse
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from measured_process import Measured, run_measured  # noqa: E402

from contenders import Contender, Job, command  # noqa: E402
from report import machine, table  # noqa: E402
from shared_options import add_cpu_option, add_shared_options, check_text, model_and_text, print_result  # noqa: E402

# OpenMP's own default, which a user can still have: threads ask for about 3 ms before they sleep.
OPENMP_DEFAULT = {"GOMP_SPINCOUNT": "300000"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/contention", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    add_shared_options(parser, "every setting", "contention")
    parser.set_defaults(samples=8, max_seq_length=256, runs=3)
    add_cpu_option(parser)
    parser.add_argument("--skip-peer", action="store_true", help="run Layerpress alone")
    arguments = parser.parse_args()
    check_text(parser, arguments)
    return arguments


# Ends by itself if this process is killed, so that no core stays busy for ever.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    for _ in range(10_000_000): pass"


@contextmanager
def busy_cores() -> Iterator[None]:
    """One process per core that computes without end."""
    processes = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def run(contender: Contender, job: Job, environment: dict[str, str], place: str = "one") -> Measured:
    own = Job(**{**vars(job), "work": job.work / place})
    own.work.mkdir(parents=True, exist_ok=True)
    return run_measured(command(contender, own, own.work / "summary.json"), job.environment | environment,
                        own.work / "run.log")


def settings(contender: Contender, job: Job, environment: dict[str, str]) -> dict[str, Measured]:
    """One run of each: the longer one's seconds where two run beside each other."""
    alone = run(contender, job, environment)
    with busy_cores():
        busy = run(contender, job, environment)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda place: run(contender, job, environment, place), ("one", "other")))
    return {"alone": alone, "one busy process per core": busy,
            "two runs beside each other": max(both, key=lambda measured: measured.seconds)}


def measure(arguments: argparse.Namespace) -> str:
    model, calibration, _ = model_and_text(arguments, arguments.model)
    job = Job(model, calibration, arguments.samples, arguments.max_seq_length, arguments.group_size,
              arguments.work.resolve(), arguments.cpu)
    ours = Contender("Layerpress", "gptq", "minmax")
    programs = [("Layerpress", ours, {}, arguments.runs),
                ("Layerpress with OpenMP's default waiting", ours, OPENMP_DEFAULT, arguments.runs)]
    if not arguments.skip_peer:
        # Once, because beside busy processes it takes minutes.
        programs.append(("LLM Compressor", Contender("LLM Compressor", "gptq", "minmax"), {}, 1))
    rows = []
    for name, contender, environment, runs in programs:
        turns = []
        for _ in range(runs):
            turns.append(settings(contender, job, environment))
            seconds = ", ".join(f"{setting} {measured.seconds:.1f} s" for setting, measured in turns[-1].items())
            print(f"{name}: {seconds}", file=sys.stderr, flush=True)
        medians = {setting: statistics.median(turn[setting].seconds for turn in turns) for setting in turns[0]}
        for setting, seconds in medians.items():
            spent = statistics.median(turn[setting].cpu_seconds for turn in turns)
            rows.append([f"{name}, {setting}", f"{seconds:.1f}", f"{seconds / medians['alone']:.2f}", f"{spent:.1f}"])
    return "\n\n".join([
        f"{model.name}, GPTQ with 4-bit weights in groups of {job.group_size}, {job.samples} samples of up to "
        f"{job.max_seq_length} tokens; whole processes, medians of {arguments.runs} run(s), of LLM Compressor one run. On {machine()}. A fair share of "
        "cores that others keep busy, or that two runs share, would be a ratio of 2.",
        table(["", "seconds", "relative to alone", "CPU seconds"], rows)]) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
