"""The program: reads the request, runs the tasks, prints their figures."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any, BinaryIO, TextIO


class TasksError(Exception):
    """An expected kind of fault. The text says what, where and what to do."""


def one_line(fault: object, limit: int = 400) -> str:
    text = " ".join(str(fault).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def main(request_stream: BinaryIO, output: TextIO, diagnostics: TextIO) -> int:
    """Returns the exit code: 0 for success, 1 for failure, after a line `error: ...` on `diagnostics`."""
    try:
        request = json.loads(request_stream.read())
        _prepare_libraries(offline=not request.get("download"))
        with contextlib.redirect_stdout(sys.stderr):  # the harness prints
            from .tasks import run

            summary = run(request)
    except TasksError as fault:
        text = one_line(fault, 2000)
    except KeyboardInterrupt:
        text = "interrupted"
    except Exception as fault:
        frame = traceback.extract_tb(fault.__traceback__)[-1]
        text = f"{type(fault).__name__} at {Path(frame.filename).name}:{frame.lineno}: {one_line(fault) or 'no message'}"
    else:
        print(json.dumps(summary), file=output, flush=True)
        return 0
    print(f"error: [eval.tasks] {text}", file=diagnostics)
    return 1


def _prepare_libraries(offline: bool) -> None:
    """Before they are imported: nothing is fetched unless that was asked for, and nothing is drawn."""
    if offline:
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    os.environ.update(TQDM_DISABLE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TOKENIZERS_PARALLELISM="false")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
