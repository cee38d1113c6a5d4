"""The helper that prepares data: a program beside the package, which this process starts or imports."""

from __future__ import annotations

import inspect
import os
import sys
from pathlib import Path


def helper_script() -> str:
    here = os.environ.get("LAYERPRESS_HELPER")
    return here or str(Path(inspect.getfile(helper_script)).resolve().parents[1] / "prepare.py")


def import_helper() -> None:
    """Lets this process import the helper's packages."""
    folder = str(Path(helper_script()).parent)
    if folder not in sys.path:
        sys.path.append(folder)
