"""The program: reads the request, does what it asks for, prints the answer."""

from __future__ import annotations

import json
import logging
import os
import traceback
import warnings
from pathlib import Path
from typing import Any, BinaryIO, Callable, TextIO

from .errors import HubError, one_line, without_tokens


def main(request_stream: BinaryIO, output: TextIO, diagnostics: TextIO) -> int:
    """Returns the exit code: 0 for success, 1 for failure, after exactly one line on `diagnostics`."""
    os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", TQDM_DISABLE="1", HF_HUB_DISABLE_TELEMETRY="1")
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)

    def report(line: dict[str, Any]) -> None:
        print(json.dumps(line), file=output, flush=True)

    try:
        report(answer(json.loads(request_stream.read()), report))
        return 0
    except HubError as fault:
        text = str(fault)
    except KeyboardInterrupt:
        text = "[hub] interrupted"
    except Exception as fault:
        frame = traceback.extract_tb(fault.__traceback__)[-1]
        text = f"[hub] {type(fault).__name__} at {Path(frame.filename).name}:{frame.lineno}: {fault or 'no message'}"
    print(f"error: {one_line(without_tokens(text), 2000)}", file=diagnostics)
    return 1


def answer(request: dict[str, Any], report: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Executes `request`."""
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as fault:
        raise HubError(f"[hub] the Python package 'huggingface_hub' does not load ({one_line(fault)}): "
                       "install it with: pip install huggingface_hub") from None
    from . import download, upload

    actions = {"download": download.download, "check": upload.check, "upload": upload.upload}
    return actions[request.pop("action")](report=report, **request)
