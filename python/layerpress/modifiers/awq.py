"""The place where older releases of LLM Compressor have it."""

from .transform.awq import AWQMapping, AWQModifier

__all__ = ["AWQMapping", "AWQModifier"]
