"""The text parts of Qwen's models for images as GGUF files."""

import numpy as np
import pytest
import torch
from support import llama, program, tiny_checkpoints, tiny_illustrated, tiny_models

AXES = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}
# llama.cpp's qwen2vl adds no epsilon in norms, whatever the file says.
FAMILIES = {"qwen2_5_vl": {"rms_norm_eps": 1e-9}, "qwen3_vl": {}, "qwen3_vl_moe": {}}


@pytest.fixture(scope="module", params=FAMILIES)
def made(request, tmp_path_factory):
    folder = tiny_checkpoints.save(tmp_path_factory.mktemp("images") / "model", "byte_level_split")
    tiny_illustrated.save(folder, request.param, vocab_size=768, rope_parameters=AXES, **FAMILIES[request.param])
    return folder, program.oneshot(folder, folder.parent / "model.gguf", "--scheme", "F32")


def test_it_is_that_of_the_model(made):
    folder, file = made
    found = program.run("verify", file, "--source", folder, "--json").json()
    assert not found["faults"] and not found["warnings"] and found["compared"] > 20
    samples = program.write_samples(folder.parent / "samples.jsonl", tiny_models.random_samples([20, 30], vocabulary=190))
    assert program.run("eval", file, "--reference", folder, "--dataset", samples).json()["kl_divergence"] < 1e-6


def test_its_file_becomes_a_checkpoint_but_no_file_without_images(made, tmp_path):
    folder, file = made
    again = program.oneshot(file, tmp_path / "again", "--scheme", "W8A16", "--group-size", "32", "--algorithm", "rtn")
    assert not program.run("verify", again, "--source", file, "--json").json()["faults"]
    program.fails("oneshot", file, "--output", tmp_path / "other.gguf", "--scheme", "Q8_0", fragments=["model for images"])


@llama.needs_llama
@pytest.mark.nightly
def test_llama_cpp_computes_it(made):
    folder, file = made
    tokens = [int(token) for token in tiny_models.random_samples([24])[0]]
    expected = tiny_illustrated.their_logits(folder, [{"input_ids": torch.tensor([tokens])}])[0]
    assert np.abs(np.array(llama.logits(file, tokens)) - expected).max() < 1e-4
