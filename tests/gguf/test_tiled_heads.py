"""Qwen 3.5, whose value heads llama.cpp has in another order: whole heads of blocks change places, in figures about inputs, too."""

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import dequantize
from support import block_models, llama, program, tiny_checkpoints, tiny_illustrated, tiny_models

KEYS, OF_KEY, SIZE = 2, 4, 64
OUT = "model.layers.0.linear_attn.out_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return block_models.save(tmp_path_factory.mktemp("tiled") / "model", "Qwen3_5", dtype=torch.float32, head_dim=64, num_hidden_layers=2,
                             layer_types=["linear_attention", "full_attention"], linear_num_key_heads=KEYS,
                             linear_num_value_heads=KEYS * OF_KEY, linear_key_head_dim=SIZE, linear_value_head_dim=SIZE)


@pytest.fixture(scope="module")
def samples():
    return tiny_models.random_samples([48] * 8, vocabulary=block_models.SIZES["vocab_size"], seed=3)


@pytest.fixture(scope="module")
def data(samples, tmp_path_factory):
    return ["--dataset", program.write_samples(tmp_path_factory.mktemp("data") / "samples.jsonl", samples)]


def tiled(columns):
    """Columns in the checkpoint's order, as llama.cpp has them."""
    return columns.reshape(*columns.shape[:-1], KEYS, OF_KEY, SIZE).swapaxes(-3, -2).reshape(columns.shape)


def stored(file, name):
    tensor = next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == name)
    return tensor.tensor_type.name, dequantize(tensor.data, tensor.tensor_type)


def test_blocks_fit_into_heads(model, tmp_path):
    """Q4_K, which the width would allow, has blocks of four heads."""
    file = program.oneshot(model, tmp_path / "out.gguf", "--scheme", "Q4_K_M", "--algorithm", "rtn")
    kind, values = stored(file, "blk.0.ssm_out.weight")
    expected = tiled(tiny_models.tensors(model)[OUT + ".weight"].numpy())
    assert kind == "Q5_0" and stored(file, "blk.0.attn_gate.weight")[0] == "Q4_K"
    assert 0 < np.linalg.norm(values - expected) < 0.06 * np.linalg.norm(expected)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("a_stage: {b_modifiers: {QuantizationModifier: {config_groups: {all: {targets: [Linear], format: Q4_K}}, ignore: [lm_head]}}}")
    program.fails("oneshot", model, "--output", tmp_path / "other.gguf", "--recipe", recipe,
                  fragments=["out_proj", "heads of 64 columns", "Q4_K have 256"])


def test_figures_about_inputs(model, samples, data, tmp_path):
    """In llama.cpp's order in the file, and in the checkpoint's where they are used."""
    weighed = program.oneshot(model, tmp_path / "weighed.gguf", *data, "--scheme", "Q4_0", "--algorithm", "rtn", "--observer", "hessian",
                              "--pipeline", "basic", "--imatrix", tmp_path / "importance.gguf")
    loaded, sums = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval(), []
    loaded.get_submodule(OUT).register_forward_pre_hook(lambda _, inputs: sums.append(inputs[0].double().square().sum((0, 1))))
    with torch.no_grad():
        for sample in samples:
            loaded(torch.tensor([sample]))
    found = next(tensor.data for tensor in gguf.GGUFReader(tmp_path / "importance.gguf").tensors if tensor.name == "blk.0.ssm_out.weight.in_sum2")
    assert np.allclose(found.reshape(-1), tiled(sum(sums).numpy()), rtol=1e-3)
    used = program.oneshot(model, tmp_path / "used.gguf", "--scheme", "Q4_0", "--from-imatrix", tmp_path / "importance.gguf")
    assert np.array_equal(stored(used, "blk.0.ssm_out.weight")[1], stored(weighed, "blk.0.ssm_out.weight")[1])


def test_a_calibrated_file_is_verified_and_compressed_again(model, data, tmp_path):
    file = program.oneshot(model, tmp_path / "out.gguf", *data, "--scheme", "Q5_K_M")
    assert program.run("verify", file, "--source", model, "--json").json()["faults"] == []
    kind, values = stored(file, "blk.0.ssm_out.weight")
    again = program.oneshot(file, tmp_path / "again", "--scheme", "W8A16", "--algorithm", "rtn", "--ignore", "re:.*out_proj$", "lm_head")
    assert kind == "Q5_1" and np.array_equal(tiled(tiny_models.tensors(again)[OUT + ".weight"].float().numpy()),
                                             torch.from_numpy(values).to(torch.bfloat16).float().numpy())


@llama.needs_llama
@pytest.mark.nightly
def test_llama_cpp_computes_it(model, tmp_path):
    file = program.oneshot(model, tmp_path / "out.gguf", "--scheme", "Q8_0", "--algorithm", "rtn")
    tokens = tiny_models.random_samples([24], vocabulary=block_models.SIZES["vocab_size"])[0]
    expected = tiny_models.logits(model, [tokens])[0]
    assert np.linalg.norm(np.array(llama.logits(file, tokens)) - expected) < 0.06 * np.linalg.norm(expected)


def test_a_model_with_images_is_verified(tmp_path):
    """A GGUF has its language model, under the names of one without images, and computes in bf16 whatever the source computes in."""
    folder = tiny_checkpoints.save(tmp_path / "model", "byte_level_split")
    for dtype in torch.float32, torch.bfloat16:
        tiny_illustrated.save(folder, "qwen3_5", dtype=dtype, vocab_size=block_models.SIZES["vocab_size"])
        file = program.oneshot(folder, tmp_path / "out.gguf", "--scheme", "Q8_0", "--algorithm", "rtn", "--overwrite")
        found = program.run("verify", file, "--source", folder, "--json").json()
        assert not found["faults"] and not found["warnings"] and found["compared"] > 40
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([20, 30], vocabulary=190))
    compared = program.run("eval", file, "--reference", folder, "--dataset", samples).json()
    assert 0 < compared["kl_divergence"] < 0.1  # the model with images counts positions on three axes
    moved = program.oneshot(folder, tmp_path / "moved.gguf", "--scheme", "Q4_K_M", "--quality", "best", "--dataset", samples)
    assert stored(moved, "blk.0.ssm_out.weight")[0] == "F16"  # heads of 16 columns fit no blocks; it is moved all the same
    assert not program.run("verify", moved, "--source", folder, "--json").json()["faults"]
    planted = tmp_path / "planted.gguf"
    data = bytearray(file.read_bytes())
    tensor = next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == "blk.0.attn_qkv.weight")
    data[tensor.data_offset:tensor.data_offset + tensor.n_bytes // 2] = bytes(tensor.n_bytes // 2)
    planted.write_bytes(data)
    assert "linear_attn.in_proj_qkv" in program.run("verify", planted, "--source", folder, code=1).output


def test_what_was_made_of_a_file_is_compared_with_the_model(tmp_path):
    """A_log goes through -exp(x) and back, which rounds its last bits."""
    settings = {"head_dim": 64, "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": KEYS,
                "linear_num_value_heads": KEYS, "linear_key_head_dim": SIZE, "linear_value_head_dim": SIZE}
    original = block_models.save(tmp_path / "model", "Qwen3_5", **settings)
    file = program.oneshot(original, tmp_path / "out.gguf", "--scheme", "F32")
    again = program.oneshot(file, tmp_path / "again", "--scheme", "W8A16", "--group-size", "64", "--algorithm", "rtn")
    assert program.run("verify", again, "--source", original, "--json").json()["faults"] == []


@pytest.mark.parametrize("kind", ["linear_attention", "full_attention"])
def test_layers_of_one_kind_are_refused(kind, tmp_path):
    """llama.cpp aborts on them."""
    one_kind = block_models.save(tmp_path / "model", "Qwen3_5", head_dim=64, num_hidden_layers=2, layer_types=[kind] * 2)
    program.fails("oneshot", one_kind, "--output", tmp_path / "out.gguf", "--scheme", "F32", fragments=["layer_types"])
