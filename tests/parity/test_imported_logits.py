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


ROPE = {"rope_theta": 10000.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + 0.3 * i for i in range(8)],
        "original_max_position_embeddings": 40}


@pytest.mark.parametrize("family, rope, most", [
    ("hunyuan_v1_dense", {"rope_type": "dynamic", "alpha": 1000.0, "factor": 1.0}, 40),
    pytest.param("apertus", {"rope_type": "dynamic", "factor": 2.0}, 40, marks=pytest.mark.nightly),
    pytest.param("apertus", LONG, 40, marks=pytest.mark.nightly),
    ("phimoe", LONG | {"factor": 2.0, "short_mscale": 1.1, "long_mscale": 1.2}, 40),
])
def test_frequencies_that_follow_the_length(family, rope, most, tmp_path, monkeypatch):
    """The graph has those of short samples, and takes no others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = any_model.save(tmp_path / "model", family, rope_parameters=ROPE | rope, head_dim=16,
                            max_position_embeddings=most if rope["rope_type"] == "dynamic" else 128)
    assert differences(folder, tmp_path, (*LENGTHS, most)) < 1e-4
    data = program.write_token_file(tmp_path / "tokens.safetensors", tiny_models.random_samples((most + 1,), 256))
    program.fails("eval", folder, "--dataset", data, fragments=[f" to {most}; add --max-seq-length {most}"])


@pytest.mark.parametrize("family", nightly_but(("opt", "biogpt", "codegen", "gptj"), "opt"))
def test_tables_of_positions(family, tmp_path, monkeypatch):
    """A sample has no more tokens than the table has positions, be they learned or computed beforehand."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, most = any_model.save(tmp_path / "model", family, max_position_embeddings=72), 72
    assert differences(folder, tmp_path, (*LENGTHS, most)) < 1e-4
    data = program.write_token_file(tmp_path / "tokens.safetensors", tiny_models.random_samples((most + 1,), 256))
    program.fails("eval", folder, "--dataset", data, fragments=[f" to {most}; add --max-seq-length {most}"])


@pytest.mark.nightly
def test_windows(tmp_path, monkeypatch):
    """The windows of DeepSeek V4 have 128 and 4 tokens."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = any_model.save(tmp_path / "model", "deepseek_v4", layer_types=["heavily_compressed_attention", "compressed_sparse_attention"],
                            hc_sinkhorn_iters=2)
    assert differences(folder, tmp_path, (13, 127, 128, 129, 255, 256, 300, 517)) < 1e-4
