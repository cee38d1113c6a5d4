"""The place where LLM Compressor has modifiers that change weights without rounding them."""

from .. import AWQModifier, SmoothQuantModifier, SpinQuantModifier

__all__ = ["AWQModifier", "SmoothQuantModifier", "SpinQuantModifier"]
