"""Limits on the length of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Iterable, Optional, Sequence

from .errors import DataError


class LengthLimit:
    """The `model_max_length` of a tokenizer, which no text exceeds."""

    def __init__(self, value: Any):
        self._most = int(value) if isinstance(value, (int, float)) and 0 < value < 2**31 else None
        self.cut_to: Optional[int] = None  # the limit, once a text has been cut to it that might be longer

    def within(self, max_length: Optional[int]) -> Optional[int]:
        """`max_length`, or the limit if that is smaller. None stays None: whole texts are wanted."""
        return max_length if max_length is None or self._most is None else min(max_length, self._most)

    def note(self, max_length: Optional[int], samples: Iterable[Sequence[int]]) -> None:
        """`max_length`: what was asked for."""
        limit = self.within(max_length)
        if limit != max_length and any(len(tokens) == limit for tokens in samples):
            self.cut_to = limit


def check_length(directory: Path, max_length: Optional[int], special_tokens: int) -> None:
    """Refuses a length that special tokens alone exceed, because the tokenizers library would then cut nothing."""
    if max_length is not None and max_length < special_tokens:
        raise DataError(
            f"{directory}: the tokenizer adds {special_tokens} special tokens to each text, "
            f"more than max_seq_length = {max_length}: raise it"
        )
