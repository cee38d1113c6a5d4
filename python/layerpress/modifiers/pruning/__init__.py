"""The place where LLM Compressor has modifiers that prune weights."""

from .. import SparseGPTModifier, WandaPruningModifier

__all__ = ["SparseGPTModifier", "WandaPruningModifier"]
