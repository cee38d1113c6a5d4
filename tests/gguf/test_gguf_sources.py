"""GGUF files as sources of runs: evaluated and compressed again."""

import json

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import dequantize
from support import block_models, gguf_files, program, tiny_models


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return block_models.save(tmp_path_factory.mktemp("source") / "model", num_hidden_layers=2)


@pytest.fixture(scope="module")
def file(model):
    return program.oneshot(model, model.parent / "model.gguf", "--scheme", "Q4_K_M", "--algorithm", "rtn")


@pytest.fixture(scope="module")
def data(model):
    path = model.parent / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": f"The {n} quick brown foxes jump over {n * n} lazy dogs."}) + "\n" for n in range(8)))
    return ["--dataset", path, "--max-seq-length", 32]


def weights_in(file, name, heads=0):
    """The weight that the package gguf decodes, with a Llama's rows of q and k back in their order."""
    tensor = next(tensor for tensor in gguf.GGUFReader(file).tensors if tensor.name == name)
    values = dequantize(tensor.data, tensor.tensor_type)
    if heads:
        rows, columns = values.shape
        values = values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
    return torch.from_numpy(np.array(values))


def test_eval_compares_with_the_original(model, file, data):
    same = program.run("eval", model, "--reference", model, *data).json()
    found = program.run("eval", file, "--reference", model, *data).json()
    assert found["tokens"] == same["tokens"]  # the texts have the same ids
    assert 0 < found["kl_divergence"] < 0.4 and found["reference_perplexity"] == same["perplexity"]


def test_dense_weights_are_those_of_the_package(file, tmp_path):
    out = program.oneshot(file, tmp_path / "out", "--scheme", "W8A16", "--algorithm", "rtn", "--ignore", "re:.*(q|k|v|gate|up)_proj$")
    found = tiny_models.tensors(out)
    for name, tensor, heads in (("self_attn.q_proj", "attn_q", 4), ("mlp.up_proj", "ffn_up", 0)):
        expected = weights_in(file, f"blk.1.{tensor}.weight", heads)
        assert torch.equal(found[f"model.layers.1.{name}.weight"], expected.to(torch.bfloat16))
    loaded = transformers.AutoTokenizer.from_pretrained(out)
    text = "Words 1234, 'and' more\n  of them."
    assert loaded(text).input_ids == transformers.AutoTokenizer.from_pretrained(file.parent / "model")(text).input_ids
    transformers.AutoModelForCausalLM.from_pretrained(out)


def test_a_calibrated_run(file, data, tmp_path):
    program.oneshot(file, tmp_path / "out", "--scheme", "W4A16", *data)
    found = program.run("eval", tmp_path / "out", "--reference", file, *data).json()
    assert 0 < found["kl_divergence"] < 0.5


def test_a_gguf_of_a_gguf_keeps_its_keys(file, tmp_path):
    out = program.oneshot(file, tmp_path / "out.gguf", "--scheme", "Q8_0", "--algorithm", "rtn")
    before, after = ({key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()} for path in (file, out))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
    assert changed <= {"general.file_type", "layerpress.recipe"}
    assert weights_in(out, "blk.0.attn_norm.weight").equal(weights_in(file, "blk.0.attn_norm.weight"))
    expected = weights_in(file, "blk.0.attn_k.weight")
    assert (weights_in(out, "blk.0.attn_k.weight") - expected).norm() / expected.norm() < 0.01


def test_scales_of_inputs_are_named(file, tmp_path):
    """NVFP4 files of other tools have them; results do not round these inputs."""
    scales = {f"blk.{layer}.attn_q.input_scale": np.array([0.5], np.float32) for layer in range(2)}
    source = gguf_files.with_tensors(tmp_path / "scaled.gguf", file, scales)
    for output in ("out", "out.gguf"):
        summary = tmp_path / "summary.json"
        outcome = program.run("oneshot", source, "--output", tmp_path / output, "--scheme", "Q8_0" if "." in output else "W8A16",
                              "--algorithm", "rtn", "--summary", summary)
        assert {each["name"] for each in json.loads(summary.read_text())["source_tensors"]["dropped"]} == set(scales)
        assert "blk.0.attn_q.input_scale and 1 more are left out: it describes" in outcome.errors
    plain = program.oneshot(file, tmp_path / "plain.gguf", "--scheme", "Q8_0", "--algorithm", "rtn")
    assert gguf_files.tensor_types(plain) == gguf_files.tensor_types(tmp_path / "out.gguf")


def test_the_source_is_not_overwritten(file):
    before = file.read_bytes()
    program.oneshot(file, file, "--scheme", "Q8_0", "--algorithm", "rtn", "--overwrite", code=2)
    assert file.read_bytes() == before


def test_the_plan_counts_decoded_weights(file):
    facts = program.run("inspect", file, "--json").json()
    assert facts["quantization"] == "GGUF, mostly Q4_K" and facts["quantized_weights"] == 16
    layer = next(subgraph for subgraph in facts["subgraphs"] if subgraph["name"].endswith("layers.1"))
    matrices = 256 * 256 * 2 + 2 * 256 * 128 + 3 * 256 * 512
    assert layer["dequantized_bytes"] == 2 * matrices  # in bf16
    assert layer["bytes"] < 0.45 * layer["dequantized_bytes"]


def test_a_plan_is_of_the_run_that_oneshot_does(file, data):
    """The place of a GGUF that is read does not make the result one."""
    options = ["--scheme", "W4A16", "--group-size", "64", *data]
    planned = program.run("inspect", file, "--plan", "--json", *options).json()
    dry = program.run("oneshot", file, "--output", file.parent / "packed", "--dry-run", *options).output
    assert planned["samples"] == 8 and "8 samples" in dry
