"""The place where LLM Compressor has it."""

from . import GPTQModifier

__all__ = ["GPTQModifier"]
