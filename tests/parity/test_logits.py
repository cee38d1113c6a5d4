"""Logits of every architecture and config switch against transformers, samples of a packed batch against one by one."""

import numpy
import program
import pytest
import tiny_models
import torch

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


@pytest.mark.parametrize("case", ["llama biases", "llama llama3", "llama longrope", "mistral window", "qwen2", "qwen3"])
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


@pytest.mark.parametrize("case, key", [
    ("llama", "num_key_value_heads"), ("llama", "head_dim"), ("llama", "rms_norm_eps"), ("llama", "hidden_act"),
    ("llama", "tie_word_embeddings"), ("llama", "rope_parameters"), ("llama", "attention_bias"),
    ("llama", "max_position_embeddings"), ("mistral no window", "sliding_window"), ("mistral window", "head_dim"),
    ("qwen2", "use_sliding_window"), ("qwen2", "tie_word_embeddings"), ("qwen2", "layer_types"),
    ("qwen2 window above", "layer_types"), ("qwen2 window above", "sliding_window"), ("qwen3", "attention_bias"),
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
