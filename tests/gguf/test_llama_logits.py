"""Logits by llama.cpp, of models at the places and with the keys that we give them, against those of transformers."""

import numpy as np
import pytest
from support import gguf_models, llama, tiny_models

TIED = {"tie_word_embeddings": True}
WINDOW = {"sliding_window": 16}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 1024, "short_factor": [1.5] * 8,
        "long_factor": [3.0] * 8}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "llama": ("Llama", {}),
    "llama with biases, tied, llama3": ("Llama", {"attention_bias": True, "mlp_bias": True, "rope_parameters": LLAMA3, **TIED}),
    "llama with linear positions": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama with yarn": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "granite": ("Granite", {"attention_multiplier": 0.25, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
                            "logits_scaling": 8.0}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, **TIED}),
    "qwen2": ("Qwen2", {}),
    "qwen2 moe": ("Qwen2Moe", {"shared_expert_intermediate_size": 48, **EXPERTS}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 moe": ("Qwen3Moe", {"norm_topk_prob": True, **EXPERTS}),
    "gemma2": ("Gemma2", {"query_pre_attn_scalar": 16, **TIED, **WINDOW}),
    "gemma3": ("Gemma3", {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, **TIED, **WINDOW}),
    "phi3": ("Phi3", {"sliding_window": None, "original_max_position_embeddings": 64}),
    "phi3 with longrope": ("Phi3", {"sliding_window": None, "max_position_embeddings": 4096, "rope_parameters": LONG,
                                    "original_max_position_embeddings": 1024}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, **WINDOW}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4}),
    "cohere2": ("Cohere2", {"num_hidden_layers": 4, **TIED, **WINDOW}),
    "deepseek v2": ("DeepseekV2", {"n_group": 1, "topk_group": 1, "topk_method": "greedy"}),
    "deepseek v3": ("DeepseekV3", {"scoring_func": "sigmoid"}),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True, "pad_token_id": None, "eos_token_id": 1}),
    "gpt-oss": ("GptOss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, **WINDOW,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}),
}
# ggml takes GELU from a table of half-precision numbers.
TOLERANCES = {"gemma2": 0.03, "gemma3": 0.03}


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.parametrize("model", MODELS)
def test_logits_are_those_of_transformers(model, tmp_path):
    family, settings = MODELS[model]
    tiny_models.save(tmp_path, family, **settings)
    file = gguf_models.write(tmp_path, tmp_path / "model.gguf")
    tokens = [int(token) for token in tiny_models.random_samples([24])[0]]
    expected = tiny_models.logits(tmp_path, [tokens])[0]
    assert np.abs(expected).max() > 0.3
    assert np.abs(np.array(llama.logits(file, tokens)) - expected).max() < TOLERANCES.get(model, 1e-4)
