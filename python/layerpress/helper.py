"""The helper that prepares data: a program beside the package, which this process starts or imports."""

from __future__ import annotations

import inspect
import os
from pathlib import Path


def helper_script() -> str:
    here = os.environ.get("LAYERPRESS_HELPER")
    return here or str(Path(inspect.getfile(helper_script)).resolve().parents[1] / "prepare.py")


def helper_folder() -> str:
    """Of its packages."""
    return str(Path(helper_script()).parent)
