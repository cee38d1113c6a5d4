"""Shared by the benchmarks that compress a model on prose: options, text, and output of the result."""
import argparse
import sys
from pathlib import Path
from typing import Callable

import debian_handbook_text
from contenders import INSTRUCTION_SETS, ROOT
from fetch_model import FetchError, fetch
from measured_process import ProcessFailed

DEFAULT_MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"


def add_shared_options(parser: argparse.ArgumentParser, of_what: str, work: str) -> None:
    """`of_what`: the object of --runs; `work`: the default folder's name in .cache."""
    parser.add_argument("--calibration", type=Path, help="JSON lines with `text` (default: from debian-handbook)")
    parser.add_argument("--evaluation", type=Path, help="JSON lines with `text` (default: other pages of debian-handbook)")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples (default 32)")
    parser.add_argument("--max-seq-length", type=int, default=512, help="tokens per sample at most (default 512)")
    parser.add_argument("--evaluation-samples", type=int, default=24, help="samples to evaluate on (default 24)")
    parser.add_argument("--group-size", type=int, default=64, help="columns per scale (default 64)")
    parser.add_argument("--runs", type=int, default=1, help=f"runs of {of_what} (default 1)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / work, help="folder for all outputs")
    parser.add_argument("--output", type=Path, help="also write the Markdown to this file")


def add_cpu_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cpu", choices=sorted(INSTRUCTION_SETS), help="as on a CPU with these instructions and no better "
                        "ones, LLM Compressor in fp32, its faster dtype there (default: all that this machine has)")


def check_text(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if (arguments.calibration is None) != (arguments.evaluation is None):
        parser.error("--calibration and --evaluation go together")


def model_and_text(arguments: argparse.Namespace, model: Path | None) -> tuple[Path, Path, Path]:
    """The model and the files to calibrate and evaluate on; the defaults are downloaded and created."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    if model is None:
        fetch(DEFAULT_MODEL)
    calibration, evaluation = arguments.calibration, arguments.evaluation
    if calibration is None:
        calibration, evaluation = debian_handbook_text.write_files(arguments.work / "debian-handbook")
    return (model or DEFAULT_MODEL).resolve(), calibration.resolve(), evaluation.resolve()


def print_result(measure: Callable[[argparse.Namespace], str], arguments: argparse.Namespace) -> int:
    """Prints the measurements and writes them to --output; returns the exit code."""
    try:
        text = measure(arguments)
        if arguments.output:
            arguments.output.write_text(text, encoding="utf-8")
    except (FetchError, ProcessFailed, debian_handbook_text.HandbookError, ValueError, KeyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text, end="" if text.endswith("\n") else "\n")
    return 0
