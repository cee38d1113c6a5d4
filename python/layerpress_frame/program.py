"""A helper as a program."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import warnings
from typing import Any, BinaryIO, Callable, NoReturn, TextIO

from .faults import RequestFault, error_line, one_line

Report = Callable[[dict[str, Any]], None]
# Executes a request and returns the answer; what it reports before are lines of their own.
Work = Callable[[dict[str, Any], Report], dict[str, Any]]


def run(place: str, work: Work) -> NoReturn:
    """The program `place`, which is the name in its error line. It ends with the program that asks, whose files it writes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that unfinished files are removed
    _end_with_parent()
    sys.exit(main(place, work, sys.stdin.buffer, sys.stdout, sys.stderr))


def main(place: str, work: Work, request: BinaryIO, answers: TextIO, faults: TextIO) -> int:
    """Returns the exit code: 0 for success, 2 for a faulty request, 1 for other faults. On failure exactly one line goes to
    `faults`. What libraries print goes to stderr."""
    _silence_libraries()

    def report(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=answers, flush=True)

    try:
        with contextlib.redirect_stdout(sys.stderr):
            answer = work(_parsed(request.read()), report)
        report(answer)
    except BaseException as fault:  # a panic in a library written in Rust is no Exception
        print(error_line(place, fault), file=faults)
        return getattr(fault, "exit_code", 1)
    return 0


def _parsed(document: bytes) -> dict[str, Any]:
    try:
        request = json.loads(document.decode("utf-8"))
    except (ValueError, RecursionError) as fault:
        raise RequestFault(f"the request on stdin is not JSON ({one_line(fault)}): pass one JSON object") from None
    if not isinstance(request, dict):
        raise RequestFault("the request on stdin is not a JSON object: pass one")
    return request


def _silence_libraries() -> None:
    """Keeps progress bars and advice of libraries off stdout and stderr, which the program that asks reads."""
    os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1")
    os.environ.update(TRANSFORMERS_NO_ADVISORY_WARNINGS="1", TRANSFORMERS_VERBOSITY="critical", HF_HUB_DISABLE_TELEMETRY="1")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)


def _end_with_parent() -> None:
    parent = os.getppid()
    try:
        import ctypes

        set_parent_death_signal = 1  # PR_SET_PDEATHSIG, Linux
        ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGTERM)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        sys.exit(1)
