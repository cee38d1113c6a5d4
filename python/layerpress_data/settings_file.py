"""JSON settings files of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .errors import DataError, one_line


def read_json_object(path: Path) -> dict[str, Any]:
    """Reads a settings file of the checkpoint; a missing one is empty."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as fault:
        raise DataError(f"{path}: not readable as JSON ({one_line(fault)}): restore the checkpoint's file") from None
    if not isinstance(document, dict):
        raise DataError(f"{path}: a JSON {type(document).__name__}, not an object: restore the checkpoint's file")
    return document
