"""Logits of imported graphs against transformers: samples of several lengths, packed and alone."""

import numpy
import pytest
from support import any_model, program, tiny_models
from support.selection import nightly_but

LENGTHS = (13, 37, 2, 21)
FAMILIES = ("llama", "gpt2", "qwen3_5_text", "qwen3_5_moe_text", "gemma4_text", "llama4_text", "rwkv",
            "recurrent_gemma", "xlstm", "aria_text", *any_model.NEW_FAMILIES)
FAST = ("lfm2",)


def differences(folder, tmp_path, lengths):
    samples = tiny_models.random_samples(lengths, 256)
    ours = program.logits(folder, samples, tmp_path, options=["--export"])
    theirs = any_model.logits(folder, samples)
    assert [mine.shape for mine in ours] == [wanted.shape for wanted in theirs]
    assert min(wanted.std() for wanted in theirs) > 0.01
    return max(numpy.abs(mine - wanted).max() / numpy.abs(wanted).max() for mine, wanted in zip(ours, theirs))


@pytest.mark.parametrize("family", nightly_but(FAMILIES, *FAST))
def test_fp32(family, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = any_model.save(tmp_path / "model", family)
    for lengths in (LENGTHS, LENGTHS[:1], LENGTHS[1:2]):
        assert differences(folder, tmp_path, lengths) < 1e-4


@pytest.mark.parametrize("family, settings", [
    pytest.param("Llama", {"hidden_act": "relu"}),
    pytest.param("Olmoe", {"clip_qkv": 0.5, "num_experts": 4, "num_experts_per_tok": 2}, marks=pytest.mark.nightly),
])
def test_variants_that_the_built_in_graph_lacks(family, settings, tmp_path, monkeypatch):
    """They are exported without being asked for."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    data = program.write_token_file(tmp_path / "tokens.safetensors", tiny_models.random_samples(LENGTHS))
    found = program.run("eval", folder, "--dataset", data).json()
    assert found == {**program.run("eval", folder, "--dataset", data, "--model-graph", "export").json(), "seconds": found["seconds"]}
    key = next(iter(settings))
    program.fails("eval", folder, "--dataset", data, "--model-graph", "builtin", fragments=[key, "leave out --model-graph builtin"])


@pytest.mark.nightly
def test_windows(tmp_path, monkeypatch):
    """The windows of DeepSeek V4 have 128 and 4 tokens."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = any_model.save(tmp_path / "model", "deepseek_v4", layer_types=["heavily_compressed_attention", "compressed_sparse_attention"],
                            hc_sinkhorn_iters=2)
    assert differences(folder, tmp_path, (13, 127, 128, 129, 255, 256, 300, 517)) < 1e-4
