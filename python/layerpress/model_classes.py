"""Classes of models that LLM Compressor had before transformers."""

from __future__ import annotations

from transformers import DeepseekV32ForCausalLM

__all__ = ["DeepseekV32ForCausalLM"]
