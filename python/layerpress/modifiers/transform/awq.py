"""The place where LLM Compressor has it."""

from .. import AWQModifier

__all__ = ["AWQModifier"]
