"""The place where LLM Compressor has it."""

from .. import WandaPruningModifier

__all__ = ["WandaPruningModifier"]
