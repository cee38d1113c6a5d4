"""The place where LLM Compressor has it."""

from . import SpinQuantModifier

__all__ = ["SpinQuantModifier"]
