"""A limit on the length of samples."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from .errors import DataError


def check_length(directory: Path, max_length: Optional[int], special_tokens: int) -> None:
    """Refuses a length that special tokens alone exceed, because the tokenizers library would then cut nothing."""
    if max_length is not None and max_length < special_tokens:
        raise DataError(
            f"{directory}: the tokenizer adds {special_tokens} special tokens to each text, "
            f"more than max_seq_length = {max_length}: raise it"
        )
