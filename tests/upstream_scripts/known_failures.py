"""Why some of LLM Compressor's example scripts do not run; the table of a run shows this in place of the message that ended the script."""

from __future__ import annotations

from typing import NamedTuple


class Reason(NamedTuple):
    words: str
    here: bool = True  # False: it could not run here with LLM Compressor either, so it does not count against the share


_HUB = Reason("a model with code of its own on the hub, which a stand-in does not have", here=False)
_WHISPER = Reason("Whisper's encoder of sound, and the linears of its decoder that read it, are not in the graph that Layerpress compresses")
_OMNI = Reason("replaces a method of the model by LLM Compressor's own (`modeling.patch`)")
_LLAMA4 = Reason("calls `generate()`, which ends in transformers' own Llama 4 (`image_outputs`, 5.24)", here=False)
_R4 = Reason("SpinQuant with R4, a rotation that is computed while the model is served")

REASONS = {
    "autoround/quantization_w8a8_fp8/llama4_dynamic_quant_example.py": _LLAMA4,
    "autoround/quantization_w8a8_fp8/llama4_static_quant_example.py": _LLAMA4,
    "awq/qwen3_next_thinking_example.py": Reason("passes a mapping to `generate()` after the compression, which transformers 5 refuses", here=False),
    "awq/step3p5_example.py": _HUB,
    "multimodal_audio/whisper_example.py": _WHISPER,
    "multimodal_vision/phi3_vision_example.py": _HUB,
    "multimodal_vision/qwen3_omni_example.py": _OMNI,
    "quantization_w8a8_fp8/whisper_example.py": _WHISPER,
    "quantizing_moe/kimi_k3_example.py": Reason("LLM Compressor's own class of the model", here=False),
    "transform/spinquant_cohere2_moe_example.py": _R4,
    "transform/spinquant_example.py": _R4,
}
