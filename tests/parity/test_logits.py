"""Logits of every architecture and config switch against transformers, samples of a packed batch against one by one."""

import numpy
import pytest
import torch
from support import program, tiny_models

# Longer and shorter than every original length below, the long one not last: samples of one batch must not share angles.
LENGTHS = (11, 50, 3, 23, 1)
ORIGINAL = 16

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": ORIGINAL}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": ORIGINAL,
            "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
            "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]}


def rope(parameters):
    return {"rope_parameters": {"rope_theta": 500.0, **parameters}}


ROPE = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.5},
    "llama3": LLAMA3,
    "yarn": YARN,
    "yarn attention_factor": {**YARN, "attention_factor": 1.3},
    "yarn mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.8},
    "yarn mscale of zero": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.0},
    "yarn betas": {**YARN, "beta_fast": 8.0, "beta_slow": 0.5},
    "yarn untruncated": {**YARN, "truncate": False},
    "longrope": LONGROPE,
    "longrope factor": {**LONGROPE, "factor": 6.0},
    "longrope attention_factor": {**LONGROPE, "attention_factor": 1.2},
}

CASES = {
    "llama": ("Llama", {}),
    "llama one key head": ("Llama", {"num_key_value_heads": 1}),
    "llama as many key heads": ("Llama", {"num_key_value_heads": 4}),
    "llama tied": ("Llama", {"tie_word_embeddings": True}),
    "llama biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama attention_bias": ("Llama", {"attention_bias": True}),
    "llama mlp_bias": ("Llama", {"mlp_bias": True}),
    "llama wide heads": ("Llama", {"head_dim": 32}),
    "llama narrow heads": ("Llama", {"head_dim": 8}),
    "llama gelu": ("Llama", {"hidden_act": "gelu"}),
    "llama gelu tanh": ("Llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama epsilon": ("Llama", {"rms_norm_eps": 0.1}),
    **{f"llama {name}": ("Llama", {"max_position_embeddings": 32 if name == "dynamic" else 64, **rope(kind)})
       for name, kind in ROPE.items()},
    "mistral window": ("Mistral", {"sliding_window": 7}),
    "mistral window of one": ("Mistral", {"sliding_window": 1}),
    "mistral no window": ("Mistral", {"sliding_window": None}),
    "mistral wide heads": ("Mistral", {"head_dim": 32, "sliding_window": 20}),
    "qwen2": ("Qwen2", {}),
    "qwen2 tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2 window off": ("Qwen2", {"use_sliding_window": False, "sliding_window": 7}),
    "qwen2 window": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0}),
    "qwen2 window above": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen2 layer_types": ("Qwen2", {"use_sliding_window": True, "sliding_window": 7,
                                    "layer_types": ["sliding_attention", "full_attention"]}),
    "qwen2 yarn": ("Qwen2", rope(YARN)),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "qwen3 wide heads": ("Qwen3", {"head_dim": 32}),
    "qwen3 attention_bias": ("Qwen3", {"head_dim": 16, "attention_bias": True}),
    "qwen3 tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 window": ("Qwen3", {"head_dim": 16, "use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1}),
    "qwen3 yarn": ("Qwen3", {"head_dim": 16, **rope(YARN)}),
    "gemma2": ("Gemma2", {"hidden_size": 96}),
    "gemma2 caps": ("Gemma2", {"attn_logit_softcapping": 1.5, "final_logit_softcapping": 3.0, "sliding_window": 7}),
    "gemma2 no caps": ("Gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma2 tied": ("Gemma2", {"tie_word_embeddings": True, "attention_bias": True, "query_pre_attn_scalar": 24}),
    "gemma2 layer_types": ("Gemma2", {"sliding_window": 5, "layer_types": ["full_attention", "sliding_attention"]}),
    "gemma2 silu": ("Gemma2", {"hidden_activation": "silu"}),
    "gemma3": ("Gemma3", {"hidden_size": 96, "num_hidden_layers": 7, "sliding_window": 7}),
    "gemma3 tied": ("Gemma3", {"tie_word_embeddings": True, "query_pre_attn_scalar": 16, "attention_bias": True}),
    "gemma3 cap": ("Gemma3", {"final_logit_softcapping": 2.0, "sliding_window": 3}),
    "gemma3 ropes": ("Gemma3", {
        "sliding_window": 7, "layer_types": ["full_attention", "sliding_attention"],
        "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3000.0},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 200.0}}}),
    "phi3": ("Phi3", {}),
    "phi3 window": ("Phi3", {"sliding_window": 7, "tie_word_embeddings": True}),
    "phi3 partial": ("Phi3", rope({"rope_type": "default", "partial_rotary_factor": 0.5})),
    "phi3 longrope": ("Phi3", {"original_max_position_embeddings": ORIGINAL, **rope(
        {**LONGROPE, "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.1, 1.2, 1.3],
         "long_factor": [1.0, 2.0, 3.0, 5.0]})}),
    "olmo2": ("Olmo2", {}),
    "olmo2 attention_bias": ("Olmo2", {"attention_bias": True, "tie_word_embeddings": True}),
    "olmo2 yarn": ("Olmo2", rope(YARN)),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5}),
    "smollm3 interval": ("SmolLM3", {"no_rope_layer_interval": 2, "attention_bias": True, "mlp_bias": True}),
    "smollm3 listed": ("SmolLM3", {"no_rope_layers": [0, 1], "use_sliding_window": True, "sliding_window": 7}),
    "smollm3 tied": ("SmolLM3", {"no_rope_layers": [1, 1], "tie_word_embeddings": True}),
    "granite": ("Granite", {}),
    "granite multipliers": ("Granite", {"embedding_multiplier": 1.7, "residual_multiplier": 0.6, "logits_scaling": 1.3,
                                        "attention_multiplier": 0.15}),
    "granite biases": ("Granite", {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
    "cohere2": ("Cohere2", {"num_hidden_layers": 5, "sliding_window": 7, "logit_scale": 0.7}),
    "cohere2 tied": ("Cohere2", {"tie_word_embeddings": True, "attention_bias": True, "logit_scale": 1.0, "head_dim": 32}),
    "cohere2 layer_types": ("Cohere2", {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5,
                                        "logit_scale": 0.7, "layer_norm_eps": 0.1}),
    "deepseek v3": ("DeepseekV3", {}),
    "deepseek v3 dense": ("DeepseekV3", {"first_k_dense_replace": 2}),
    "deepseek v3 no latent query": ("DeepseekV3", {"q_lora_rank": None, "attention_bias": True}),
    "deepseek v3 halves": ("DeepseekV3", {"rope_interleave": False, "first_k_dense_replace": 0}),
    "deepseek v3 routing": ("DeepseekV3", {"norm_topk_prob": False, "routed_scaling_factor": 1.0, "n_group": 1,
                                           "topk_group": 1}),
    "deepseek v3 yarn": ("DeepseekV3", rope({**YARN, "mscale": 1.0, "mscale_all_dim": 0.8})),
    "deepseek v2": ("DeepseekV2", {}),
    "deepseek v2 groups": ("DeepseekV2", {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                                          "routed_scaling_factor": 3.0, "q_lora_rank": None}),
    "deepseek v2 yarn": ("DeepseekV2", rope({**YARN, "mscale": 0.7, "mscale_all_dim": 0.7})),
}


def differences(folder, tmp_path, lengths=LENGTHS):
    samples = tiny_models.random_samples(lengths)
    ours, theirs = program.logits(folder, samples, tmp_path), tiny_models.logits(folder, samples)
    assert [mine.shape for mine in ours] == [wanted.shape for wanted in theirs]
    # Logits that hardly vary would agree whatever was computed.
    assert min(wanted.std() for wanted in theirs) > 0.5
    return [numpy.abs(mine - wanted).max() for mine, wanted in zip(ours, theirs)]


@pytest.mark.parametrize("case", CASES)
def test_fp32(case, tmp_path):
    family, settings = CASES[case]
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    assert max(differences(folder, tmp_path)) < 1e-4


@pytest.mark.parametrize("case", ["llama biases", "llama llama3", "llama longrope", "mistral window", "qwen2", "qwen3",
                                  "gemma2", "gemma2 caps", "gemma3", "phi3", "olmo2", "smollm3", "granite multipliers",
                                  "cohere2", "deepseek v3 dense"])
def test_bf16(case, tmp_path):
    """In bf16 both programs round; ours must be no further from the same weights in fp32 than transformers is."""
    family, settings = CASES[case]
    folder = tiny_models.save(tmp_path / "model", family, torch.bfloat16, **settings)
    samples = tiny_models.random_samples(LENGTHS)
    exact = numpy.concatenate(tiny_models.logits(folder, samples))
    theirs = numpy.concatenate(tiny_models.logits(folder, samples, torch.bfloat16))
    ours = numpy.concatenate(program.logits(folder, samples, tmp_path, "bfloat16"))
    error_of = lambda logits: numpy.sqrt(numpy.mean((logits - exact) ** 2))
    assert 0 < error_of(ours) < 1.25 * error_of(theirs)


def test_fp16_checkpoint(tmp_path):
    """fp16 weights are exact in fp32."""
    folder = tiny_models.save(tmp_path / "model", dtype=torch.float16)
    assert max(differences(folder, tmp_path)) < 1e-4


def use_old_rope(config):
    """How config.json was written before transformers 5: rope_theta beside rope_scaling, "type" for "rope_type"."""
    parameters = config.pop("rope_parameters")
    config["rope_theta"] = parameters.pop("rope_theta")
    parameters["type"] = parameters.pop("rope_type")
    config["rope_scaling"] = None if parameters == {"type": "default"} else parameters


@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn", "yarn mscale", "longrope"])
def test_old_config(kind, tmp_path):
    family, settings = CASES[f"llama {kind}"]
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    new = program.logits(folder, tiny_models.random_samples(LENGTHS), tmp_path)
    tiny_models.rewrite_config(folder, use_old_rope)
    assert max(differences(folder, tmp_path)) < 1e-4
    old = program.logits(folder, tiny_models.random_samples(LENGTHS), tmp_path)
    assert all(numpy.array_equal(a, b) for a, b in zip(new, old))


def test_original_length_beside_the_rope_parameters(tmp_path):
    """Phi's way: the original length stands at the top of config.json."""
    folder = tiny_models.save(tmp_path / "model", **rope(LONGROPE))

    def move(config):
        use_old_rope(config)
        config["original_max_position_embeddings"] = config["rope_scaling"].pop("original_max_position_embeddings")

    tiny_models.rewrite_config(folder, move)
    assert max(differences(folder, tmp_path)) < 1e-4


def test_old_gemma3_config(tmp_path):
    """Before transformers 5: a pattern for the layers' kinds, and rope_scaling for those without a window alone."""
    folder = tiny_models.save(tmp_path / "model", "Gemma3", **{**CASES["gemma3 ropes"][1], "layer_types": None},
                              num_hidden_layers=5)

    def change(config):
        full = config.pop("rope_parameters")["full_attention"]
        config.update(rope_theta=full.pop("rope_theta"), rope_scaling=full, rope_local_base_freq=200.0,
                      sliding_window_pattern=2)
        del config["layer_types"]

    tiny_models.rewrite_config(folder, change)
    assert max(differences(folder, tmp_path)) < 1e-4


@pytest.mark.parametrize("end", [1, 3])
def test_old_qwen2_moe_config(end, tmp_path):
    """Without layer_types, every other layer below max_window_layers has a window."""
    folder = tiny_models.save(tmp_path / "model", "Qwen2Moe", num_hidden_layers=3, use_sliding_window=True, sliding_window=7,
                              max_window_layers=end)
    tiny_models.rewrite_config(folder, lambda config: config.pop("layer_types"))
    assert max(differences(folder, tmp_path)) < 1e-4


def test_mixtral_without_rope_parameters(tmp_path):
    folder = tiny_models.save(tmp_path / "model", "Mixtral")
    tiny_models.rewrite_config(folder, lambda config: config.pop("rope_parameters"))
    assert max(differences(folder, tmp_path)) < 1e-4


YARN_BESIDE = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "mscale": 0.8, "mscale_all_dim": 0.5}


@pytest.mark.parametrize("case", ["llama", "qwen3", "deepseek v3", "gemma3"])
def test_rope_scaling_beside_rope_parameters(case, tmp_path):
    """As model cards tell users to write it for long texts: transformers takes it in place of rope_parameters."""
    family, settings = CASES[case]
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    plain = program.logits(folder, tiny_models.random_samples(LENGTHS), tmp_path)
    tiny_models.rewrite_config(folder, lambda config: config.update(rope_scaling=YARN_BESIDE))
    assert max(differences(folder, tmp_path)) < 1e-4
    stretched = program.logits(folder, tiny_models.random_samples(LENGTHS), tmp_path)
    assert not any(numpy.allclose(a, b) for a, b in zip(plain, stretched) if len(a) > 1)


def test_theta_that_rope_scaling_replaces(tmp_path):
    folder = tiny_models.save(tmp_path / "model", **rope({"rope_type": "default", "rope_theta": 5e5}))
    tiny_models.rewrite_config(folder, lambda config: config.update(rope_scaling=YARN_BESIDE))
    program.fails("inspect", folder, fragments=["rope_scaling replaces rope_parameters", "rope_theta is 10000 and not 500000"])


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_old_phi3_config(kind, tmp_path):
    """Names that early checkpoints have for longrope mean the same, to the last bit."""
    family, settings = CASES["phi3 longrope"]
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    samples = tiny_models.random_samples(LENGTHS)
    new = program.logits(folder, samples, tmp_path)

    def change(config):
        use_old_rope(config)
        config["partial_rotary_factor"] = config["rope_scaling"].pop("partial_rotary_factor")
        config["rope_scaling"].pop("original_max_position_embeddings", None)
        config["rope_scaling"]["type"] = kind

    tiny_models.rewrite_config(folder, change)
    assert all(numpy.array_equal(a, b) for a, b in zip(new, program.logits(folder, samples, tmp_path)))


@pytest.mark.parametrize("case, key", [
    ("llama", "num_key_value_heads"), ("llama", "head_dim"), ("llama", "rms_norm_eps"), ("llama", "hidden_act"),
    ("llama", "tie_word_embeddings"), ("llama", "rope_parameters"), ("llama", "attention_bias"),
    ("llama", "max_position_embeddings"), ("mistral no window", "sliding_window"), ("mistral window", "head_dim"),
    ("qwen2", "use_sliding_window"), ("qwen2", "tie_word_embeddings"), ("qwen2", "layer_types"),
    ("qwen2 window above", "layer_types"), ("qwen2 window above", "sliding_window"), ("qwen3", "attention_bias"),
    ("gemma2 caps", "layer_types"), ("gemma2", "attn_logit_softcapping"), ("gemma2", "final_logit_softcapping"),
    ("gemma2", "query_pre_attn_scalar"), ("gemma2", "hidden_activation"), ("gemma2 tied", "tie_word_embeddings"),
    ("gemma3", "layer_types"), ("gemma3", "rope_parameters"), ("phi3", "rope_parameters"), ("phi3", "rms_norm_eps"),
    ("olmo2", "rms_norm_eps"), ("smollm3", "no_rope_layers"), ("smollm3", "rope_parameters"),
    ("smollm3 tied", "tie_word_embeddings"), ("granite", "attention_multiplier"), ("granite", "logits_scaling"),
    ("cohere2", "layer_types"), ("cohere2", "layer_norm_eps"), ("cohere2 tied", "tie_word_embeddings"),
])
def test_missing_key_means_the_class_default(case, key, tmp_path):
    family, settings = CASES[case]
    if key == "num_key_value_heads":
        settings = {**settings, key: 4}  # the class's default: as many as heads
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    tiny_models.rewrite_config(folder, lambda config: config.pop(key, None))
    assert max(differences(folder, tmp_path)) < 1e-4


def test_default_window_is_longer_than_any_here(tmp_path):
    """A missing window and none differ only beyond 4096 tokens; the graph tells them apart."""
    folder = tiny_models.save(tmp_path / "model", "Mistral", sliding_window=None)
    assert "4096" not in program.run("inspect", folder, "--graph").output
    tiny_models.rewrite_config(folder, lambda config: config.pop("sliding_window"))
    assert "4096" in program.run("inspect", folder, "--graph").output


def test_sharded(tmp_path):
    whole = tiny_models.save(tmp_path / "whole")
    parts = tiny_models.save(tmp_path / "parts", max_shard_size="50KB")
    assert len(list(parts.glob("*.safetensors"))) > 3
    samples = tiny_models.random_samples(LENGTHS)
    pairs = zip(program.logits(whole, samples, tmp_path), program.logits(parts, samples, tmp_path))
    assert all(numpy.array_equal(a, b) for a, b in pairs)
    assert max(differences(parts, tmp_path)) < 1e-4


@pytest.mark.parametrize("case", ["llama", "llama dynamic", "llama longrope", "mistral window"])
def test_no_token_sees_another_sample(case, tmp_path):
    """Other neighbours of the same lengths change nothing, to the last bit."""
    family, settings = CASES[case]
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    samples, others = tiny_models.random_samples(LENGTHS), tiny_models.random_samples(LENGTHS, seed=1)
    for kept in range(len(samples)):
        mixed = [sample if i == kept else other for i, (sample, other) in enumerate(zip(samples, others))]
        if kept == 0:
            wanted = program.logits(folder, samples, tmp_path)
        assert numpy.array_equal(program.logits(folder, mixed, tmp_path)[kept], wanted[kept])
