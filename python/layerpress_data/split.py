"""Split names with a slice, as in `train[10:50]`."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from .errors import DataError

_SPLIT = re.compile(r"([^\[\]+]*)(?:\[(-?\d*):(-?\d*)\])?")


class Split(NamedTuple):
    """`start` and `stop` count rows from 0, as in a Python slice."""

    name: str
    start: Optional[int] = None
    stop: Optional[int] = None

    @property
    def from_end(self) -> bool:
        """Whether a bound counts from the end, which requires the number of rows."""
        return (self.start or 0) < 0 or (self.stop or 0) < 0


def parse_split(text: str) -> Split:
    """Parses `name`, `name[a:b]`, `name[a:]` or `name[:b]`; raises DataError for anything else."""
    match = _SPLIT.fullmatch(text.strip())
    if match is None or "-" in match.groups():
        raise DataError(f"split '{text}' is not valid for a file: write it as train or train[10:50], in rows")
    name, start, stop = match.groups()
    return Split(name, int(start) if start else None, int(stop) if stop else None)
