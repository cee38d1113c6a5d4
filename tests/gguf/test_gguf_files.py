"""GGUF files as a user gets them: read by transformers and by the package gguf, which know nothing of Layerpress."""

import json
import os
import shutil

import gguf
import numpy as np
import pytest
import torch
import transformers
from gguf.quants import dequantize
from safetensors.torch import load_file, save_file
from support import block_models, gguf_models, program, tiny_checkpoints, tiny_models
from support.local_hub import LocalHub
from support.selection import nightly_but
from support.watched_runs import killed, unfinished

FAMILIES = {
    "Llama": {},
    "Mistral": {"tie_word_embeddings": True},
    "Qwen2": {},
    "Qwen3": {"head_dim": 128},
    "Qwen3Moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 256, "head_dim": 128, "decoder_sparse_step": 1,
                 "norm_topk_prob": True},
}


def checkpoint(folder, family="Llama", dtype=torch.float32, **settings):
    return block_models.save(folder, family, dtype=dtype, **{**FAMILIES.get(family, {}), **settings})


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return checkpoint(tmp_path_factory.mktemp("llama") / "model", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rows = tiny_models.random_samples([48] * 24, vocabulary=block_models.SIZES["vocab_size"], seed=3)
    return ["--dataset", program.write_samples(tmp_path_factory.mktemp("data") / "samples.jsonl", rows)]


def recipe_of(path, groups, **arguments):
    rounding = {"ignore": ["lm_head"], "config_groups": groups, **arguments}
    path.write_text(json.dumps({"a_stage": {"a_modifiers": {"QuantizationModifier": rounding}}}))
    return path


def logits(folder, file=None):
    options = {"gguf_file": file} if file else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options).eval()
    tokens = torch.arange(40).remainder(97)[None]
    with torch.no_grad():
        return model(tokens).logits[0]


def types(path):
    return {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_function(family, tmp_path):
    """Names, permutations, stacks, keys and float types: the file computes what the model computes."""
    model = checkpoint(tmp_path / "model", family)
    program.oneshot(model, tmp_path / "out.gguf", "--scheme", "F16", "--algorithm", "rtn")
    expected, found = logits(model), logits(tmp_path, "out.gguf")
    assert (found - expected).norm() / expected.norm() < 3e-3


def test_types_of_a_mixture(llama, tmp_path):
    program.oneshot(llama, tmp_path / "out.gguf", "--algorithm", "rtn")
    found = types(tmp_path / "out.gguf")
    assert found["output.weight"] == "Q6_K" and found["blk.0.attn_norm.weight"] == "F32"
    assert found["blk.0.attn_q.weight"] == "Q4_K" and "Q6_K" in {found[f"blk.{i}.ffn_down.weight"] for i in range(3)}


def test_rounding_is_the_packages(llama, tmp_path):
    """Q8_0 and Q4_0, which the package rounds, too, but for the order of a Llama's rows of q and k."""
    program.oneshot(llama, tmp_path / "out.gguf", "--scheme", "Q8_0", "--algorithm", "rtn")
    weights = tiny_models.tensors(llama)
    for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors:
        if tensor.name == "blk.1.ffn_up.weight":
            rows = weights["model.layers.1.mlp.up_proj.weight"].float().numpy()
        elif tensor.name == "blk.1.attn_k.weight":
            rows = weights["model.layers.1.self_attn.k_proj.weight"].float().numpy()
            rows = rows.reshape(2, 2, 32, 256).swapaxes(1, 2).reshape(128, 256)
        else:
            continue
        assert np.array_equal(tensor.data, gguf.quants.quantize(rows, tensor.tensor_type))


def test_groups_of_a_recipe(llama, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("""
a_stage:
  a_modifiers:
    QuantizationModifier:
      config_groups:
        down: {targets: ['re:.*down_proj$'], format: Q5_K}
        others: {targets: [Linear], format: Q4_0}
      ignore: [lm_head]
""")
    program.oneshot(llama, tmp_path / "out.gguf", "--recipe", recipe)
    found = types(tmp_path / "out.gguf")
    assert found["blk.2.ffn_down.weight"] == "Q5_K" and found["blk.2.attn_v.weight"] == "Q4_0"
    assert found["token_embd.weight"] == found["output.weight"] == "BF16"  # as in the model
    fields = gguf.GGUFReader(tmp_path / "out.gguf").fields
    assert "down_proj" in fields["layerpress.recipe"].contents()


VOCABULARY = "        vocabulary: {targets: [Embedding, lm_head], format: Q6_K}\n"


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("vocabulary", [VOCABULARY, ""])
def test_groups_of_a_recipe_with_the_head(tied, vocabulary, data, tmp_path):
    """A tied head has no tensor of its own; the embedding's has the type that the recipe gives either."""
    model = checkpoint(tmp_path / "model", dtype=torch.bfloat16, tie_word_embeddings=tied)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"""
gguf_stage:
  gguf_modifiers:
    GPTQModifier:
      config_groups:
        down: {{targets: ['re:.*down_proj$'], format: Q6_K}}
{vocabulary}        others: {{targets: [Linear], format: Q4_K}}
""")
    program.oneshot(model, tmp_path / "out.gguf", "--recipe", recipe, *data)
    found = types(tmp_path / "out.gguf")
    assert found["blk.2.ffn_down.weight"] == "Q6_K" and found["blk.2.attn_v.weight"] == "Q4_K"
    named = "Q6_K" if vocabulary else "Q4_K"
    assert found.get("output.weight") == (None if tied else named)
    assert found["token_embd.weight"] == (named if tied or vocabulary else "BF16")


@pytest.mark.parametrize("scheme", ["F32", "F16", "BF16"])
def test_nothing_is_quantized(llama, scheme, tmp_path):
    program.oneshot(llama, tmp_path / "out.gguf", "--scheme", scheme)
    reader = gguf.GGUFReader(tmp_path / "out.gguf")
    assert {tensor.tensor_type.name for tensor in reader.tensors} == {scheme, "F32"}
    tensor = next(tensor for tensor in reader.tensors if tensor.name == "blk.1.ffn_up.weight")
    weight = tiny_models.tensors(llama)["model.layers.1.mlp.up_proj.weight"].float().numpy()
    assert tensor.tensor_type.name == scheme
    assert np.array_equal(dequantize(tensor.data, tensor.tensor_type), weight.astype(np.float16) if scheme == "F16" else weight)


def test_a_type_is_no_scheme(llama, tmp_path):
    program.fails("oneshot", llama, "--output", tmp_path / "out.gguf", "--scheme", "q3_k", "--algorithm", "rtn",
                  fragments=["Q3_K is the type of single tensors; choose from Q3_K_S, Q3_K_M, Q3_K_L"], code=2)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("a_stage: {a_modifiers: {QuantizationModifier: {scheme: Q4_K}}}")
    program.fails("oneshot", llama, "--output", tmp_path / "out.gguf", "--recipe", recipe,
                  fragments=["'Q4_K'; it is the type of single tensors of GGUF files, whose schemes are Q4_K_S, Q4_K_M"])


@pytest.mark.parametrize("scheme, source, algorithm", [
    ("Q4_0", ["W4A16", "--group-size", "32"], "rtn"), ("Q4_1", ["W4A16_ASYM", "--group-size", "32"], "rtn"), ("Q8_0", ["W8A16"], "rtn"),
    ("Q4_0", ["W4A16", "--group-size", "32"], "gptq")])
def test_quantized_sources_keep_their_values(llama, data, scheme, source, algorithm, tmp_path):
    """With GPTQ, too, whose codes are better than what rounding again would give, and whose config names an order of columns."""
    folder = program.oneshot(llama, tmp_path / "source", *data, "--algorithm", algorithm, "--dtype", "float16", "--scheme", *source)
    outcome = program.run("oneshot", folder, "--output", tmp_path / "out.gguf", "--algorithm", "rtn", "--scheme", scheme)
    assert "21 modules keep the values" in outcome.errors
    stored = tiny_models.tensors(folder)
    module = "model.layers.1.mlp.down_proj"
    words = stored[f"{module}.weight_packed"].numpy().view(np.uint8)
    codes = words.astype(np.int64) - 128 if scheme == "Q8_0" else np.stack([words & 15, words >> 4], -1).reshape(len(words), -1) - 8.0
    scales = stored[f"{module}.weight_scale"].float().numpy()
    group = codes.shape[1] // scales.shape[1]
    zeros = 0
    if scheme == "Q4_1":
        packed = stored[f"{module}.weight_zero_point"].numpy().view(np.uint8)
        zeros = np.stack([packed & 15, packed >> 4], -1)  # rows are packed: row 8 i + j is nibble j of row i
        zeros = zeros.reshape(-1, scales.shape[1], 8).swapaxes(1, 2).reshape(scales.shape) - 8.0
        zeros = zeros.repeat(group, 1)
    wanted = (codes - zeros) * scales.repeat(group, 1)
    found = next(t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors if t.name == "blk.1.ffn_down.weight")
    assert found.tensor_type.name == scheme
    assert np.abs(dequantize(found.data, found.tensor_type) - wanted).max() <= (2e-3 if scheme == "Q4_1" else 1e-7) * np.abs(wanted).max()


@pytest.mark.parametrize("source", [["FP8_BLOCK"], ["W4A16", "--group-size", "32"]])
def test_ignored_weights_of_quantized_sources_are_values(llama, source, tmp_path):
    folder = program.oneshot(llama, tmp_path / "source", "--algorithm", "rtn", "--scheme", *source)
    outcome = program.run("oneshot", folder, "--output", tmp_path / "out.gguf", "--algorithm", "rtn", "--scheme", "Q8_0", "--ignore",
                          "re:.*o_proj")
    assert "3 weights that stay uncompressed are written as" in outcome.errors
    found = types(tmp_path / "out.gguf")
    assert found["blk.0.attn_output.weight"] == "BF16" and found["blk.0.attn_q.weight"] == "Q8_0"
    program.run("verify", tmp_path / "out.gguf", "--source", folder)


def test_blocks_that_cannot_hold_the_values(llama, tmp_path):
    folder = program.oneshot(llama, tmp_path / "source", "--algorithm", "rtn", "--scheme", "W4A16", "--group-size", "32")
    outcome = program.run("oneshot", folder, "--output", tmp_path / "out.gguf", "--algorithm", "rtn", "--scheme", "Q4_K_S")
    assert "stored in 4-bit int group 32 and quantized again, which adds to the error: 21 modules" in outcome.errors
    assert "quantized again: 21 modules; this added a relative error of 0.0" in outcome.errors


def fp4_levels(packed):
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)
    return np.where(codes > 7, -1, 1) * np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7]


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_mxfp4_sources_keep_their_values(llama, data, algorithm, tmp_path):
    folder = program.oneshot(llama, tmp_path / "source", "--algorithm", "rtn", "--scheme", "MXFP4A16")
    recipe = tmp_path / "recipe.yaml"
    modifier = {"rtn": "QuantizationModifier", "gptq": "GPTQModifier"}[algorithm]
    recipe.write_text(f"a_stage: {{a_modifiers: {{{modifier}: {{config_groups: {{all: {{targets: [Linear], format: MXFP4}}}}, "
                      "ignore: [lm_head]}}}")
    outcome = program.run("oneshot", folder, "--output", tmp_path / "out.gguf", *data, "--recipe", recipe)
    assert "21 modules keep the values" in outcome.errors
    module = "model.layers.1.mlp.gate_proj"
    stored = tiny_models.tensors(folder)
    scales = 2.0 ** (stored[f"{module}.weight_scale"].numpy().astype(np.float64) - 127)
    wanted = fp4_levels(stored[f"{module}.weight_packed"].numpy()) * scales.repeat(32, 1)
    found = next(t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors if t.name == "blk.1.ffn_gate.weight")
    assert found.tensor_type.name == "MXFP4" and np.array_equal(dequantize(found.data, found.tensor_type), wanted)


NVFP4_MODULES = {"blk.1.ffn_gate": ("mlp.gate_proj", 0), "blk.2.ffn_down": ("mlp.down_proj", 0), "blk.1.attn_k": ("self_attn.k_proj", 2)}


def nvfp4_values(file, name, heads=0):
    """What llama.cpp computes with: blocks, times the number beside them; a Llama's rows of q and k in their order."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}
    weight, scale = tensors[f"{name}.weight"], tensors[f"{name}.scale"]
    assert weight.tensor_type.name == "NVFP4" and scale.data.dtype == np.float32 and scale.data.shape == (1,)
    values = dequantize(weight.data, weight.tensor_type) * scale.data
    return values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape) if heads else values


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_nvfp4_sources_keep_their_values(llama, data, algorithm, tmp_path):
    folder = program.oneshot(llama, tmp_path / "source", "--algorithm", "rtn", "--scheme", "NVFP4A16")
    outcome = program.run("oneshot", folder, "--output", tmp_path / "out.gguf", *data, "--algorithm", algorithm, "--scheme", "NVFP4")
    assert "21 modules keep the values" in outcome.errors
    found = types(tmp_path / "out.gguf")
    assert found["token_embd.weight"] == found["output.weight"] == "Q8_0" and "output.scale" not in found
    stored = tiny_models.tensors(folder)
    for name, (module, heads) in NVFP4_MODULES.items():
        prefix = f"model.layers.{name.split('.')[1]}.{module}"
        scales = stored[f"{prefix}.weight_scale"].float().numpy() / stored[f"{prefix}.weight_global_scale"].numpy()
        wanted = fp4_levels(stored[f"{prefix}.weight_packed"].numpy()) * scales.repeat(16, 1)
        assert np.abs(nvfp4_values(tmp_path / "out.gguf", name, heads) - wanted).max() <= 2e-7 * np.abs(wanted).max()


def test_nvfp4_of_a_model_that_is_not_quantized(llama, data, tmp_path):
    """The number for the whole weight makes it as good as a folder's NVFP4; the file as a source has the same values."""
    out = program.oneshot(llama, tmp_path / "out.gguf", "--scheme", "NVFP4", *data)
    weights = tiny_models.tensors(llama)
    back = program.oneshot(out, tmp_path / "back", "--scheme", "W8A16", "--algorithm", "rtn", "--ignore", "re:.*(gate|up|down|q|k|v)_proj$")
    back = tiny_models.tensors(back)
    for name, (module, heads) in NVFP4_MODULES.items():
        tensor = f"model.layers.{name.split('.')[1]}.{module}.weight"
        values = torch.from_numpy(nvfp4_values(out, name, heads))
        original = weights[tensor].float()
        assert (values - original).norm() / original.norm() < 0.13
        assert torch.equal(back[tensor], values.to(torch.bfloat16))


def test_nvfp4_experts_have_a_number_each(tmp_path):
    model = checkpoint(tmp_path / "model", "Qwen3Moe", dtype=torch.bfloat16)
    folder = program.oneshot(model, tmp_path / "source", "--algorithm", "rtn", "--scheme", "NVFP4A16")
    program.oneshot(folder, tmp_path / "out.gguf", "--algorithm", "rtn", "--scheme", "NVFP4")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(tmp_path / "out.gguf").tensors}
    stack, scales = tensors["blk.1.ffn_up_exps.weight"], tensors["blk.1.ffn_up_exps.scale"]
    stored = tiny_models.tensors(folder)
    assert scales.data.shape == (4,)
    for expert in range(4):
        prefix = f"model.layers.1.mlp.experts.{expert}.up_proj"
        assert scales.data[expert] == np.float32(1) / stored[f"{prefix}.weight_global_scale"].numpy()[0]
        wanted = fp4_levels(stored[f"{prefix}.weight_packed"].numpy()) * stored[f"{prefix}.weight_scale"].float().numpy().repeat(16, 1)
        assert np.array_equal(dequantize(stack.data[expert], stack.tensor_type), wanted.astype(np.float32))


def test_scales_of_inputs_are_chosen_for_blocks(llama, data, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("a_stage: {a_modifiers: {AWQModifier: {n_grid: 5}, QuantizationModifier: {scheme: Q4_0}}}")
    program.oneshot(llama, tmp_path / "scaled.gguf", *data, "--recipe", recipe)
    program.oneshot(llama, tmp_path / "plain.gguf", "--algorithm", "rtn", "--scheme", "Q4_0")
    norms = [next(t.data for t in gguf.GGUFReader(tmp_path / f"{name}.gguf").tensors if t.name == "blk.1.ffn_norm.weight")
             for name in ("scaled", "plain")]
    assert not np.array_equal(*norms)
    expected = logits(llama)
    scaled, plain = ((logits(tmp_path, f"{name}.gguf") - expected).norm().item() for name in ("scaled", "plain"))
    assert scaled < 1.05 * plain


def test_max_quality(llama, data, tmp_path):
    """Rotations first: other values in every matrix, the same function."""
    found = {}
    for quality in "best", "max":
        file = program.oneshot(llama, tmp_path / f"{quality}.gguf", "--scheme", "Q8_0", "--quality", quality, *data)
        found[quality] = program.run("eval", file, "--reference", llama, "--dataset", data[1], "--dtype", "fp32").json()["kl_divergence"]
    names = {tensor.name for tensor in gguf.GGUFReader(tmp_path / "max.gguf").tensors}
    assert "output.weight" in names and 0 < found["max"] < 3 * found["best"], found


def test_killed_and_resumed(llama, data, tmp_path):
    arguments = [*data, "--quality", "best", "--sequential-targets", "Linear"]
    undisturbed = program.oneshot(llama, tmp_path / "first.gguf", *arguments).read_bytes()
    out = tmp_path / "second.gguf"
    killed(llama, out, *arguments)
    program.oneshot(llama, out, *arguments, "--resume")
    assert out.read_bytes() == undisturbed
    assert not unfinished(out).exists()


def test_push(llama, tmp_path):
    """The file joins what the repository has."""
    hub = LocalHub()
    (tmp_path / "home").mkdir()
    hub.models["me/result"] = {"model-Q8_0.gguf": b"mine"}
    try:
        out = program.oneshot(llama, tmp_path / "model-Q4_0.gguf", "--scheme", "Q4_0", "--algorithm", "rtn", "--push", "me/result",
                              env=hub.environment(tmp_path / "home", PATH=os.environ["PATH"]))
        assert hub.models["me/result"]["model-Q8_0.gguf"] == b"mine"
        assert hub.models["me/result"]["model-Q4_0.gguf"] == out.read_bytes()
    finally:
        hub.close()


def test_another_file_is_there(llama, tmp_path):
    out = tmp_path / "out.gguf"
    arguments = ["--scheme", "Q4_0", "--algorithm", "rtn"]
    before = program.oneshot(llama, out, *arguments).read_bytes()
    program.fails("oneshot", llama, "--output", out, *arguments, fragments=["exists", "--overwrite"], code=2)
    assert "already complete" in program.run("oneshot", llama, "--output", out, *arguments, "--resume").output
    program.oneshot(llama, out, "--scheme", "Q8_0", "--algorithm", "rtn", "--overwrite")
    assert out.read_bytes() != before and [path.name for path in tmp_path.iterdir()] == ["out.gguf"]


@pytest.mark.parametrize("arguments, fragments", [
    (["--scheme", "W4A16"], ["W4A16", "llama.cpp's types"]),
    (["--scheme", "Q4_K_M", "--group-size", "32"], ["--group-size", "Q4_K_M"]),
    (["--scheme", "Q4_K_M", "--targets", "re:.*mlp.*"], ["--targets"]),
])
def test_refused_options(llama, tmp_path, arguments, fragments):
    program.fails("oneshot", llama, "--output", tmp_path / "out.gguf", "--algorithm", "rtn", *arguments, fragments=fragments, code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_type_of_ggufs_in_a_folder(llama, tmp_path):
    program.fails("oneshot", llama, "--output", tmp_path / "out", "--algorithm", "rtn", "--scheme", "Q4_K_M",
                  fragments=["Q4_K_M", ".gguf"], code=2)


def test_types_that_do_not_fit(tmp_path):
    """Before the run, with the linears and a type that fits them."""
    model = checkpoint(tmp_path / "model", intermediate_size=288)
    recipe = recipe_of(tmp_path / "recipe.json", {"all": {"targets": ["Linear"], "format": "Q4_K"}})
    program.fails("oneshot", model, "--output", tmp_path / "out.gguf", "--recipe", recipe, fragments=[
        "[recipe.check] Q4_K stores 256 values together, which do not divide 288 columns (3 linears, such as model.layers.0.mlp.down_proj); give "
        "them a group with format: Q5_0 in place of Q4_K, or use a scheme such as Q4_K_M"])


@pytest.mark.parametrize("scheme", ["Q4_K_M", "Q3_K_M"])
def test_plans_of_mixtures_are_short(scheme, tmp_path):
    """Layers whose types differ need nearly the same."""
    model = checkpoint(tmp_path / "model", num_hidden_layers=16, hidden_size=512, intermediate_size=1024)
    planned = program.run("oneshot", model, "--output", tmp_path / "out.gguf", "--algorithm", "rtn", "--scheme", scheme, "--dry-run").output
    table = planned[planned.index("subgraph"):planned.index("memory in")].splitlines()
    assert len(table) <= 6, planned


def test_sizes_are_those_of_whole_files(llama, tmp_path):
    """Of a GGUF, the tokenizer and all keys are a part of the file."""
    summary = tmp_path / "summary.json"
    first = program.oneshot(llama, tmp_path / "first.gguf", "--scheme", "Q8_0", "--algorithm", "rtn", "--summary", summary)
    assert json.loads(summary.read_text())["output_bytes"] == first.stat().st_size
    second = program.oneshot(first, tmp_path / "second.gguf", "--scheme", "Q4_0", "--algorithm", "rtn", "--summary", summary)
    details = json.loads(summary.read_text())
    assert (details["source_bytes"], details["output_bytes"]) == (first.stat().st_size, second.stat().st_size)


def test_ignore_has_no_default(llama, tmp_path):
    """The schemes of GGUFs quantize the head, too, so that nothing warns of it as in a folder."""
    arguments = ["--algorithm", "rtn", "--ignore", "re:.*down_proj$"]
    outcome = program.run("oneshot", llama, "--output", tmp_path / "out.gguf", "--scheme", "Q8_0", *arguments)
    assert "--ignore replaces" not in outcome.errors and types(tmp_path / "out.gguf")["output.weight"] == "Q8_0"
    outcome = program.run("oneshot", llama, "--output", tmp_path / "out", "--scheme", "W8A16", *arguments)
    assert "--ignore replaces its default: lm_head is quantized, too; add lm_head" in outcome.errors


def test_decodes_as_the_package_does(llama, tmp_path):
    """The error that the summary states is that of the file."""
    summary = tmp_path / "summary.json"
    program.oneshot(llama, tmp_path / "out.gguf", "--scheme", "Q3_K_M", "--algorithm", "rtn", "--summary", summary)
    weight = tiny_models.tensors(llama)["model.layers.0.mlp.gate_proj.weight"].float().numpy()
    stored = next(t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors if t.name == "blk.0.ffn_gate.weight")
    error = np.linalg.norm(dequantize(stored.data, stored.tensor_type) - weight) / np.linalg.norm(weight)
    stated = next(m for m in json.loads(summary.read_text())["modules"] if m["module"] == "model.layers.0.mlp.gate_proj")
    assert stated["weight_error"] == pytest.approx(error, rel=1e-4)


@pytest.mark.parametrize("model", nightly_but(gguf_models.MODELS, "llama", "phi3", "deepseek v2", "gpt-oss"))
def test_every_family_has_all_its_tensors(model, tmp_path):
    """In fp32, they are the checkpoint's, in the order and at the places that llama.cpp reads."""
    family, settings = gguf_models.MODELS[model]
    tiny_checkpoints.save(tmp_path / "model", "byte_level_split")
    tiny_models.save(tmp_path / "model", family, **{**settings, "vocab_size": block_models.SIZES["vocab_size"]})
    found = program.oneshot(tmp_path / "model", tmp_path / "out.gguf", "--scheme", "F32")
    expected = gguf_models.write(tmp_path / "model", tmp_path / "expected.gguf")
    values = [{tensor.name: tensor.data for tensor in gguf.GGUFReader(file).tensors} for file in (found, expected)]
    assert values[0].keys() == values[1].keys()
    assert [name for name in values[0] if not np.array_equal(values[0][name], values[1][name])] == []


LATENT = {"num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32,
          "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "n_group": 1, "topk_group": 1,
          "first_k_dense_replace": 1}


@pytest.mark.parametrize("folder, name", [("llama-from-phi3", "llama-from-phi 3"), ("Phi-3-mini", "Phi 3-mini"), ("phi-2", "phi-2")])
def test_names_that_say_phi_3(folder, name, tmp_path):
    """llama.cpp looks for tokens of Phi 3 in a model whose name says so, and does not load it without them."""
    model = checkpoint(tmp_path / folder)
    outcome = program.run("oneshot", model, "--output", tmp_path / "out.gguf", "--scheme", "F16")
    assert gguf.GGUFReader(tmp_path / "out.gguf").fields["general.name"].contents() == name
    assert (f"general.name) is '{name}'" in outcome.errors) == (folder != name)


def test_rotated_halves(tmp_path):
    """llama.cpp rotates neighbours in a latent's keys; a model that rotates halves would be computed wrongly."""
    model = checkpoint(tmp_path / "model", "DeepseekV3", rope_interleave=False, **LATENT)
    program.fails("oneshot", model, "--output", tmp_path / "out.gguf", "--algorithm", "rtn", "--scheme", "F32",
                  fragments=["rope_interleave", "rotates neighbouring channels"])


def test_a_weight_that_becomes_two_tensors(data, tmp_path):
    """A target such as Linear does not mean it, and the run says so; of measured schemes it gets none."""
    model = checkpoint(tmp_path / "model", "DeepseekV3", **LATENT)
    recipe = recipe_of(tmp_path / "recipe.json", {"all": {"targets": ["Linear"], "format": "Q5_0"}})
    outcome = program.run("oneshot", model, "--output", tmp_path / "out.gguf", "--recipe", recipe)
    assert "self_attn.kv_b_proj, ...) although the targets match: llama.cpp reads each weight as several tensors" in outcome.errors
    found = types(tmp_path / "out.gguf")
    assert found["blk.0.attn_k_b.weight"] == found["blk.0.attn_v_b.weight"] == "F32" and found["blk.0.attn_kv_a_mqa.weight"] == "Q5_0"
    program.oneshot(model, tmp_path / "chosen.gguf", "--target-bits", "6.5", "--schemes", "Q4_0,Q8_0", *data, "--algorithm", "rtn")
    found = types(tmp_path / "chosen.gguf")
    assert found["blk.0.attn_k_b.weight"] == "F32" and found["blk.0.attn_kv_a_mqa.weight"] in ("Q4_0", "Q8_0")


def test_experts_of_two_types(tmp_path):
    """Refused before the data is read, by the plan as well."""
    model = checkpoint(tmp_path / "model", "Qwen3Moe")
    recipe = recipe_of(tmp_path / "recipe.json", {"first": {"targets": ["re:.*experts\\.[01]\\..*"], "format": "Q6_K"},
                                                  "others": {"targets": ["Linear"], "format": "Q4_K"}})
    for mode in (["--dry-run"], []):
        program.fails("oneshot", model, "--output", tmp_path / "out.gguf", "--recipe", recipe, *mode,
                      fragments=["experts.2", "would be Q4_K, but other experts of its layer Q6_K", "give all of them one format"])


@pytest.mark.parametrize("group, arguments, fragments", [
    ({"targets": ["re:.*q_proj"], "format": "IQ2_XS"}, {}, ["one.format is", "IQ2_XS", "llama.cpp's types, it is one of", "Q5_K"]),
    ({"targets": ["re:.*q_proj"], "weights": {"num_bits": 4}}, {}, ["one.weights", "llama.cpp's types"]),
    ("re:.*q_proj", {}, ["one: a group is a mapping"]),
    ({"targets": ["re:.*q_proj"], "format": "Q6_K"}, {"kv_cache_scheme": {"num_bits": 8, "type": "float"}},
     ["kv_cache_scheme: a GGUF has no place for scales of keys and values"]),
])
def test_a_wrong_group_beside_a_right_one(group, arguments, fragments, llama, tmp_path):
    recipe = recipe_of(tmp_path / "recipe.json", {"one": group, "others": {"targets": ["Linear"], "format": "Q4_K"}}, **arguments)
    program.fails("oneshot", llama, "--output", tmp_path / "out.gguf", "--recipe", recipe, fragments=fragments)


def test_an_unknown_format(llama, tmp_path):
    recipe = recipe_of(tmp_path / "recipe.json", {"all": {"targets": ["Linear"], "format": "IQ2_XS"}})
    program.fails("oneshot", llama, "--output", tmp_path / "out.gguf", "--recipe", recipe, fragments=["IQ2_XS", "for a GGUF", "IQ4_XS"])


@pytest.mark.parametrize("scheme", ["F16", "Q4_0", "Q4_K_M"])
def test_weights_below_fp16(scheme, llama, tmp_path):
    """Weights that would all become zeros are refused by name."""
    model = shutil.copytree(llama, tmp_path / "small")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"] *= 1e-9
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    program.fails("oneshot", model, "--output", tmp_path / "out.gguf", "--scheme", scheme, "--algorithm", "rtn",
                  fragments=["model.layers.1.mlp.down_proj", "all are zero", "BF16"])
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize("scheme, largest, faulty", [("F16", 1e5, True), ("Q8_0", 1e8, True), ("Q4_0", 1e8, True), ("Q8_0", 1e6, False),
                                                     ("BF16", 1e8, False)])
def test_weights_beyond_fp16(scheme, largest, faulty, llama, tmp_path):
    """Finite weights whose fp16 scales or values would be infinite are refused by name."""
    model = shutil.copytree(llama, tmp_path / "large")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.down_proj.weight"][3, 5] = largest
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    arguments = ["--scheme", scheme, "--algorithm", "rtn"]
    results = tmp_path / "results"
    results.mkdir()
    if faulty:
        program.fails("oneshot", model, "--output", results / "out.gguf", *arguments, fragments=["model.layers.1.mlp.down_proj", "65504"])
        assert list(results.iterdir()) == []
        return
    out = program.oneshot(model, results / "out.gguf", *arguments)
    assert all(np.isfinite(dequantize(tensor.data, tensor.tensor_type)).all() for tensor in gguf.GGUFReader(out).tensors)
