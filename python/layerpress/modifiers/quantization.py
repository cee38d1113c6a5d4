"""The place where LLM Compressor has it."""

from . import GPTQModifier, QuantizationModifier

__all__ = ["GPTQModifier", "QuantizationModifier"]
