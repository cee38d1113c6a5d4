"""Executes a request: does what it asks for, returns the answer."""

from __future__ import annotations

from typing import Any, Callable

from layerpress_frame.faults import Fault, one_line
from layerpress_frame.program import Report


def answer(request: dict[str, Any], report: Report) -> dict[str, Any]:
    try:
        import huggingface_hub  # noqa: F401
    except ImportError as fault:
        raise Fault(f"the Python package 'huggingface_hub' does not load ({one_line(fault)}): "
                    "install it with: pip install huggingface_hub") from None
    from . import download, upload

    actions: dict[str, Callable] = {"download": download.download, "check": upload.check, "upload": upload.upload}
    return actions[request.pop("action")](report=report, **request)
