"""Which tokens of a sample count in statistics: those that the chat template marks as the assistant's, or a column says."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Mapping, Optional, Sequence

from .errors import DataError

LOSS_MASK_COLUMN = "loss_mask"
ATTENTION_MASK_COLUMN = "attention_mask"  # 0 marks padding


class Masked(list):
    """Token ids of a sample with a `mask`, 1 for those that count and 0 for the others."""

    def __init__(self, tokens: Iterable[int], mask: Iterable[int]):
        super().__init__(tokens)
        self.mask = list(mask)


def checked_mask(place: str, value: Any, tokens: Sequence[int]) -> list[int]:
    """The column's value for a row of token ids."""
    if not isinstance(value, (list, tuple)):
        raise DataError(
            f"{place}: --use-loss-mask needs a list '{LOSS_MASK_COLUMN}' of 0 and 1 beside 'input_ids': add it, or use messages"
        )
    if len(value) != len(tokens):
        raise DataError(f"{place}: '{LOSS_MASK_COLUMN}' has {len(value)} entries for {len(tokens)} token ids: make it as long")
    for position, entry in enumerate(value):
        if entry not in (0, 1):
            raise DataError(f"{place}: '{LOSS_MASK_COLUMN}' entry {position} is {str(entry)[:40]!r}: entries are 0 or 1")
    return [int(entry) for entry in value]


def without_padding(place: str, row: Mapping[str, Any], tokens: list[int]) -> tuple[list[int], Any]:
    """Token ids and loss mask of a row without what its attention mask marks as padding."""
    keep, mask = row.get(ATTENTION_MASK_COLUMN), row.get(LOSS_MASK_COLUMN)
    if keep is None:
        return tokens, mask
    if not isinstance(keep, (list, tuple)) or len(keep) != len(tokens) or any(entry not in (0, 1) for entry in keep):
        raise DataError(f"{place}: '{ATTENTION_MASK_COLUMN}' is no list with 0 or 1 for each of the {len(tokens)} token ids: mend it, or "
                        "leave it out")
    if mask is not None:
        mask = [entry for entry, kept in zip(checked_mask(place, mask, tokens), keep) if kept]
    return [token for token, kept in zip(tokens, keep) if kept], mask


def masked_tokens(
    tokens: Sequence[int], marked: Iterable[tuple[int, int]], token_of: Callable[[int], Optional[int]]
) -> Masked:
    """Marks the tokens of the marked parts of a text, as transformers does. `token_of` is the token that a character belongs to,
    None behind what was cut off."""
    mask = [0] * len(tokens)
    for start, end in marked:
        first, last = token_of(start), token_of(end - 1)
        if first is None:
            break
        for position in range(first, last + 1 if last else len(tokens)):
            mask[position] = 1
    return Masked(tokens, mask)
