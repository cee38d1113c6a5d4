"""Logits by llama.cpp, of models at the places and with the keys that we give them, against those of transformers, and of files in
NVFP4 against ours."""

import numpy as np
import pytest
from support import block_models, gguf_models, llama, program, tiny_models

# ggml takes GELU from a table of half-precision numbers.
TOLERANCES = {"gemma2": 0.03, "gemma3": 0.03}


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.parametrize("model", gguf_models.MODELS)
def test_logits_are_those_of_transformers(model, tmp_path):
    family, settings = gguf_models.MODELS[model]
    tiny_models.save(tmp_path, family, **settings)
    file = gguf_models.write(tmp_path, tmp_path / "model.gguf")
    tokens = [int(token) for token in tiny_models.random_samples([24])[0]]
    expected = tiny_models.logits(tmp_path, [tokens])[0]
    assert np.abs(expected).max() > 0.3
    assert np.abs(np.array(llama.logits(file, tokens)) - expected).max() < TOLERANCES.get(model, 1e-4)


EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True}
NVFP4 = {
    "Llama": {},
    "Mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "Qwen2": {},
    "Qwen3": {"head_dim": 64},
    "Qwen3Moe": {"head_dim": 64, **EXPERTS},
    "Cohere2": {"num_hidden_layers": 4, "tie_word_embeddings": True},
    "Phi3": {"sliding_window": None, "pad_token_id": 0},
    "Olmo2": {},
}


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.parametrize("family", NVFP4)
def test_nvfp4_has_its_scales_where_llama_cpp_reads_them(family, tmp_path):
    """It loads no tensor that it does not know. Its kernels round inputs to 8 bits, which changes logits by 4 % with Q8_0, too."""
    model = block_models.save(tmp_path / "model", family, **NVFP4[family])
    file = program.oneshot(model, tmp_path / "model.gguf", "--scheme", "NVFP4", "--algorithm", "rtn")
    tokens = [int(token) for token in tiny_models.random_samples([24], vocabulary=block_models.SIZES["vocab_size"])[0]]
    expected = program.logits(file, [tokens], tmp_path)[0]
    found = np.array(llama.logits(file, tokens))
    assert np.linalg.norm(found - expected) < 0.06 * np.linalg.norm(expected)
