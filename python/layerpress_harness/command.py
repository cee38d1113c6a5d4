"""Executes a request: runs the tasks, returns their figures."""

from __future__ import annotations

import os
from typing import Any

from layerpress_frame.program import Report


def answer(request: dict[str, Any], report: Report) -> dict[str, Any]:
    """Nothing is fetched unless that is asked for."""
    if not request.get("download"):
        os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from .tasks import run

    return run(request)
