"""The options shared by the programs here, and the job that they describe."""
import argparse
from pathlib import Path

from ranked_process import RankedJob, say
from shared_options import add_shared_options, check_text, model_and_text


def add_options(parser: argparse.ArgumentParser) -> None:
    add_shared_options(parser, "every number of ranks", "distributed")
    parser.add_argument("--threads", type=int, default=1, help="of every rank; 0: the program's choice (default 1)")


def check_options(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    check_text(parser, arguments)
    if min(arguments.runs, arguments.samples, arguments.max_seq_length, arguments.evaluation_samples) < 1:
        parser.error("--runs, --samples, --max-seq-length and --evaluation-samples are at least 1")
    if arguments.threads < 0 or min(arguments.ranks) < 1:
        parser.error("--ranks are at least 1, --threads at least 0")


def job_of(arguments: argparse.Namespace, model: Path | None) -> RankedJob:
    """Creates the text and downloads the default model if they are not given."""
    folder, calibration, evaluation = model_and_text(arguments, model)
    say(f"{folder.name}: {arguments.samples} samples of {calibration.name}")
    return RankedJob(folder, calibration, evaluation, arguments.samples, arguments.max_seq_length, arguments.group_size,
                     arguments.evaluation_samples, arguments.threads, arguments.work.resolve())
