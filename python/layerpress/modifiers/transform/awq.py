"""The place where LLM Compressor has it."""

from __future__ import annotations

import dataclasses

from .. import AWQModifier


@dataclasses.dataclass
class AWQMapping:
    """An entry of AWQModifier's mappings."""

    smooth_layer: str
    balance_layers: list[str]
    activation_hook_target: str | None = None


__all__ = ["AWQMapping", "AWQModifier"]
