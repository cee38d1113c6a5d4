"""The place where LLM Compressor has it."""

from .. import SmoothQuantModifier

__all__ = ["SmoothQuantModifier"]
