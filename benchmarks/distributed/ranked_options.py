"""The options that `run` and `table` share, and the job that they describe."""
import argparse
from pathlib import Path

from ranked_process import DEFAULT_MODEL, ROOT, RankedJob, say

import debian_handbook_text
from fetch_model import fetch


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calibration", type=Path, help="JSON lines with `text` (default: from debian-handbook)")
    parser.add_argument("--evaluation", type=Path, help="JSON lines with `text` (default: other pages of debian-handbook)")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples (default 32)")
    parser.add_argument("--max-seq-length", type=int, default=512, help="tokens per sample at most (default 512)")
    parser.add_argument("--evaluation-samples", type=int, default=24, help="samples to evaluate on (default 24)")
    parser.add_argument("--group-size", type=int, default=64, help="columns per scale (default 64)")
    parser.add_argument("--threads", type=int, default=1, help="of every rank; 0: the program's choice (default 1)")
    parser.add_argument("--runs", type=int, default=1, help="runs of every number of ranks (default 1)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "distributed", help="folder for all outputs")
    parser.add_argument("--output", type=Path, help="also write the Markdown to this file")


def check_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    if (arguments.calibration is None) != (arguments.evaluation is None):
        parser.error("--calibration and --evaluation go together")
    if min(arguments.runs, arguments.samples, arguments.max_seq_length, arguments.evaluation_samples) < 1:
        parser.error("--runs, --samples, --max-seq-length and --evaluation-samples are at least 1")
    if arguments.threads < 0 or min(arguments.ranks) < 1:
        parser.error("--ranks are at least 1, --threads at least 0")


def job_of(arguments: argparse.Namespace, model: Path | None) -> RankedJob:
    """Makes the text and fetches the default model when they are not given."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    if model is None:
        fetch(DEFAULT_MODEL)
    calibration, evaluation = arguments.calibration, arguments.evaluation
    if calibration is None:
        calibration, evaluation = debian_handbook_text.write_files(arguments.work / "debian-handbook")
    say(f"{(model or DEFAULT_MODEL).name}: {arguments.samples} samples of {calibration.name}")
    return RankedJob((model or DEFAULT_MODEL).resolve(), calibration.resolve(), evaluation.resolve(), arguments.samples,
                     arguments.max_seq_length, arguments.group_size, arguments.evaluation_samples, arguments.threads,
                     arguments.work.resolve())
