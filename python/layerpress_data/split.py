"""Split names with a slice, as in `train[10:50]` or `train[:20%]`."""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from .errors import DataError

_SPLIT = re.compile(r"([^\[\]+]*)(?:\[(-?\d+%?)?:(-?\d+%?)?\])?")


class Split(NamedTuple):
    """`start` and `stop` as they are written: rows from 0, as in a Python slice, or percent of all rows. Both are in percent if one is."""

    name: str
    start: Optional[str] = None
    stop: Optional[str] = None

    @property
    def needs_count(self) -> bool:
        """Whether a bound counts from the end or in percent, which requires the number of rows."""
        return any(bound is not None and ("-" in bound or "%" in bound) for bound in (self.start, self.stop))

    def rows(self, count: int) -> range:
        """The rows of the slice, of `count`."""
        in_percent = any(bound is not None and bound.endswith("%") for bound in (self.start, self.stop))
        return range(count)[slice(*(_row(bound, count, in_percent) for bound in (self.start, self.stop)))]


def _row(bound: Optional[str], count: int, in_percent: bool) -> Optional[int]:
    if bound is None:
        return None
    number = int(bound.removesuffix("%"))
    return round(number * count / 100) if in_percent else number  # as `datasets` rounds


def parse_split(text: str) -> Split:
    """Parses `name` and `name[a:b]`, of which either bound may be missing; raises DataError for anything else."""
    match = _SPLIT.fullmatch(text.strip())
    if match is None:
        raise DataError(f"split '{text}' is not one: write it as train, train[10:50] or train[:20%]")
    return Split(*match.groups())
