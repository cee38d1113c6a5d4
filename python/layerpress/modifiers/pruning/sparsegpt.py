"""The place where LLM Compressor has it."""

from .. import SparseGPTModifier

__all__ = ["SparseGPTModifier"]
