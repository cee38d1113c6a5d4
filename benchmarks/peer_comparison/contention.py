"""Measures how other work on the same cores slows a run down, and prints Markdown. See benchmarks/contention."""
import argparse
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from contenders import PYTHON, Contender, Job, command
from measured_process import Measured, run_measured
from report import machine, table
from shared_options import add_cpu_option, add_shared_options, check_text, model_and_text, print_result

# OpenMP's own default, which a user can still have: threads ask for about 3 ms before they sleep.
OPENMP_DEFAULT = {"GOMP_SPINCOUNT": "300000"}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/contention", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    add_shared_options(parser, "every setting", "contention")
    parser.set_defaults(samples=8, max_seq_length=256, runs=3)
    add_cpu_option(parser)
    parser.add_argument("--ranks", type=int, default=2, help="ranks of the runs that torchrun starts (default 2; 0: none)")
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


@dataclass
class Program:
    """A contender and how it is started."""
    name: str
    contender: Contender
    runs: int
    environment: dict[str, str]
    launcher: list[str]


def programs(arguments: argparse.Namespace) -> list[Program]:
    ours = Contender("Layerpress", "gptq", "minmax")
    chosen = [Program("Layerpress", ours, arguments.runs, {}, []),
              Program("Layerpress with OpenMP's default waiting", ours, arguments.runs, OPENMP_DEFAULT, [])]
    if arguments.ranks > 0:
        # It sets OMP_NUM_THREADS to 1 for each rank; Layerpress divides the cores among the ranks instead.
        torchrun = [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node",
                    str(arguments.ranks)]
        chosen.append(Program(f"Layerpress, {arguments.ranks} ranks started by torchrun", ours, arguments.runs, {}, torchrun))
    if not arguments.skip_peer:
        # One process, because its ranks need a GPU each. Once, because beside busy processes it takes minutes.
        chosen.append(Program("LLM Compressor", Contender("LLM Compressor", "gptq", "minmax"), 1, {}, []))
    return chosen


def run(program: Program, job: Job, place: str = "one") -> Measured:
    own = Job(**{**vars(job), "work": job.work / place})
    own.work.mkdir(parents=True, exist_ok=True)
    return run_measured(program.launcher + command(program.contender, own, own.work / "summary.json"),
                        job.environment | program.environment, own.work / "run.log")


def settings(program: Program, job: Job) -> dict[str, Measured]:
    """One run of each: the longer one's seconds where two run beside each other."""
    alone = run(program, job)
    with busy_cores():
        busy = run(program, job)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda place: run(program, job, place), ("one", "other")))
    return {"alone": alone, "one busy process per core": busy,
            "two runs beside each other": max(both, key=lambda measured: measured.seconds)}


def measure(arguments: argparse.Namespace) -> str:
    model, calibration, _ = model_and_text(arguments, arguments.model)
    job = Job(model, calibration, arguments.samples, arguments.max_seq_length, arguments.group_size,
              arguments.work.resolve(), arguments.cpu)
    rows = []
    for program in programs(arguments):
        turns = []
        for _ in range(program.runs):
            turns.append(settings(program, job))
            seconds = ", ".join(f"{setting} {measured.seconds:.1f} s" for setting, measured in turns[-1].items())
            print(f"{program.name}: {seconds}", file=sys.stderr, flush=True)
        medians = {setting: statistics.median(turn[setting].seconds for turn in turns) for setting in turns[0]}
        for setting, seconds in medians.items():
            spent = statistics.median(turn[setting].cpu_seconds for turn in turns)
            rows.append([f"{program.name}, {setting}", f"{seconds:.1f}", f"{seconds / medians['alone']:.2f}", f"{spent:.1f}"])
    return "\n\n".join([
        f"{model.name}, GPTQ with 4-bit weights in groups of {job.group_size}, {job.samples} samples of up to "
        f"{job.max_seq_length} tokens; whole processes (torchrun included), medians of {arguments.runs} run(s), of LLM Compressor one run. "
        f"On {machine()}. A fair share of cores that others keep busy, or that two runs share, would be a ratio of 2.",
        table(["", "seconds", "relative to alone", "CPU seconds"], rows)]) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
