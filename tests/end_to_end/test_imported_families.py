"""Models of the newest families, compressed through exported graphs and loaded by transformers; and the memory of such runs."""

import pytest
import torch
from support import any_model, planned_runs, program, reloading, tiny_models
from support.planned_runs import MIB, Measured, plan

pytestmark = pytest.mark.nightly

LENGTHS = (13, 37, 21)
# Of the divergence of a model that knows nothing. Four bits cost a small random model much, and its routers choose other experts.
SCHEMES = {"W4A16": (["--group-size", "16"], 0.85), "W8A8": ([], 0.2)}
# Convolutions, recurrences with experts, and attention as exported, in layers that are larger than the program itself.
LARGE = {
    "lfm2": {"hidden_size": 1024, "intermediate_size": 4096},
    "nemotron_h": {"hidden_size": 1024, "n_routed_experts": 16, "moe_intermediate_size": 1024,
                   "layers_block_type": ["mamba", "attention", "moe"]},
    "gemma2": {"hidden_size": 1024, "intermediate_size": 6144},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def loaded_logits(folder, samples, decoded):
    """transformers loads no int8 experts, nor every model that is packed; it loads what compressed-tensors decodes."""
    try:
        return reloading.logits(folder, samples)
    except reloading.NotLoaded:
        return reloading.logits(reloading.decoded(folder, decoded), samples)


@pytest.mark.parametrize("family", any_model.NEW_FAMILIES)
def test_compressed_and_loaded(family, tmp_path):
    model = any_model.save(tmp_path / "model", family)
    samples = tiny_models.random_samples(LENGTHS, 256)
    wanted = any_model.logits(model, samples)
    rows = program.write_samples(tmp_path / "rows.jsonl", samples * 4)
    for scheme, (options, most) in SCHEMES.items():
        out = program.oneshot(model, tmp_path / scheme, "--model-graph", "export", "--scheme", scheme, "--dataset", rows, *options)
        own, nothing = reloading.divergence(loaded_logits(out, samples, tmp_path / f"{scheme}-decoded"), wanted)
        assert 1e-6 * nothing < own < most * nothing, scheme


@pytest.mark.parametrize("family", LARGE)
def test_memory(family, tmp_path):
    settings = {"vocab_size": planned_runs.VOCABULARY, "max_position_embeddings": 512}
    model = any_model.save(tmp_path / "model", family, torch.bfloat16, **settings, **LARGE[family])
    arguments = ["--model-graph", "export", *planned_runs.data(tmp_path, 16, 256), "--threads", "2", "--group-size", "32"]
    planned, measured = plan(model, tmp_path / "out", *arguments), Measured(model, tmp_path / "out", *arguments)
    assert abs(planned["peak_bytes"] - measured.peak_bytes) <= 0.15 * measured.peak_bytes, (
        f"planned {planned['peak_bytes'] / MIB:.0f} MiB, measured {measured.peak_bytes / MIB:.0f} MiB")
