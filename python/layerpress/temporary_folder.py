"""Folders for what a call passes to the program."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import _native


class TemporaryFolder:
    """A folder in TMPDIR. The program's own class makes it, so that another run removes it if this process is killed."""

    def __init__(self) -> None:
        self._made = _native.TemporaryDirectory()
        self.path = Path(self._made.path)

    def remove(self) -> None:
        self._made = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: Any) -> None:
        self.remove()
