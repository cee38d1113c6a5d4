"""Rotated models compute what their originals do: transformers' logits of both, for every family."""

import json
import re
import shutil
from pathlib import Path

import numpy
import pytest
import torch
from support import any_model, program, tiny_illustrated, tiny_mllama, tiny_models
from support.selection import nightly_but
from support.tiny_mllama import Sample

SAMPLES = tiny_models.random_samples([19, 30], seed=5)

# Settings, and the rotations that the family allows.
BOTH, HEADS = ["R1", "R2"], ["R2"]
FAMILIES = {
    "Llama": ({"attention_bias": True, "mlp_bias": True, "hidden_size": 48, "head_dim": 16}, BOTH),  # 48 = 12 x 4
    "Mistral": ({"tie_word_embeddings": True}, BOTH),
    "Mixtral": ({"num_local_experts": 4}, BOTH),
    "Qwen2": ({"tie_word_embeddings": True}, BOTH),
    "Qwen2Moe": ({"num_experts": 4, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}, BOTH),
    "Qwen3": ({"head_dim": 16}, BOTH),
    "Qwen3Moe": ({"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16}, BOTH),
    "Olmoe": ({"num_experts": 4, "num_experts_per_tok": 2}, BOTH),
    "SmolLM3": ({"no_rope_layers": [1, 0]}, BOTH),
    "Granite": ({"residual_multiplier": 0.6, "logits_scaling": 1.3, "embedding_multiplier": 2.0}, BOTH),
    "Phi3": ({}, BOTH),
    "DeepseekV2": ({}, BOTH),
    "DeepseekV3": ({}, BOTH),
    "Gemma2": ({"sliding_window": 7}, HEADS),
    "Gemma3": ({"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}, HEADS),
    "Olmo2": ({}, HEADS),
    "Cohere2": ({"layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.7}, HEADS),
}


def rotate(model, output, code=0, more="", **arguments):
    recipe = output.with_name(output.name + ".yaml")
    recipe.write_text(json.dumps({"quant_stage": {"quant_modifiers": {"SpinQuantModifier": arguments, **(more or {})}}}))
    return program.run("oneshot", model, "--output", output, "--recipe", recipe, code=code)


def assert_equal(original, rotated, load):
    for mine, wanted in zip(load(rotated), load(original), strict=True):
        assert wanted.std() > 0.1
        assert numpy.abs(mine - wanted).max() < 1e-3 * numpy.abs(wanted).max()


def changed(original, rotated):
    before, after = tiny_models.tensors(original), tiny_models.tensors(rotated)
    return {name for name in after if name not in before or not torch.equal(before[name], after[name])}


@pytest.mark.parametrize("family", nightly_but(FAMILIES, "Llama", "Qwen2", "Qwen2Moe", "DeepseekV3", "Gemma2"))
def test_families(family, tmp_path):
    settings, rotations = FAMILIES[family]
    model = tiny_models.save(tmp_path / "model", family, **settings)
    rotate(model, tmp_path / "out", rotations=rotations)
    assert_equal(model, tmp_path / "out", lambda folder: tiny_models.logits(folder, SAMPLES))
    names = changed(model, tmp_path / "out")
    assert any("v_proj" in name or "qkv_proj" in name or "kv_b_proj" in name for name in names)
    assert ("model.embed_tokens.weight" in names) == ("R1" in rotations)
    if "R1" in rotations:
        tensors = tiny_models.tensors(tmp_path / "out")
        assert torch.equal(tensors["model.norm.weight"], torch.ones_like(tensors["model.norm.weight"]))
        assert json.loads((tmp_path / "out/config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize("settings", [
    {"transform_type": "random-hadamard"}, {"randomize": True}, {"transform_block_size": 16}, {"rotations": ["r1"]},
])
def test_kinds_of_matrices(settings, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    rotate(model, tmp_path / "out", **settings)
    assert_equal(model, tmp_path / "out", lambda folder: tiny_models.logits(folder, SAMPLES))
    rotate(model, tmp_path / "plain")
    assert changed(tmp_path / "plain", tmp_path / "out")


@pytest.mark.parametrize("family, message", [
    ("Gemma2", "post_attention_layernorm is a norm whose result is added to the residual stream"),
    ("Olmo2", "post_attention_layernorm is a norm whose result is added to the residual stream"),
    ("Cohere2", "input_layernorm is a LayerNorm"),
])
def test_models_without_r1(family, message, tmp_path):
    model = tiny_models.save(tmp_path / "model", family)
    outcome = rotate(model, tmp_path / "out", code=1)
    assert message in outcome.error and "use rotations: [R2]" in outcome.error


def test_sizes_without_a_matrix(tmp_path):
    """The advice works."""
    model = tiny_models.save(tmp_path / "model", hidden_size=66, num_attention_heads=3, num_key_value_heads=3, intermediate_size=64)
    outcome = rotate(model, tmp_path / "out", code=1, rotations=["R1"])
    assert "order 66 (R1)" in outcome.error and outcome.error.endswith("write transform_block_size: 2"), outcome.error
    rotate(model, tmp_path / "out", rotations=["R1"], transform_block_size=2)


def test_models_without_rotations(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = any_model.save(tmp_path / "model", "gpt_neox")
    for rotation in ("R1", "R2"):
        assert "R1 and R2 are both impossible" in rotate(model, tmp_path / "out", code=1, rotations=[rotation]).error


@pytest.mark.parametrize("arguments, message", [
    ({"rotations": ["R1", "R3"]}, "engines other than vLLM"), ({"rotations": ["R4"]}, "engines other than vLLM"),
    ({"learnable": True}, "learnable"), ({"transform_type": "random-matrix"}, "random-matrix"),
    ({"transform_block_size": 24}, "does not divide"), ({"mappings": {"embedding": "re:.*embed"}}, "mappings"),
    ({"rotations": []}, "none"), ({"rotations": ["R7"]}, "R7"), ({"transform_config": {}}, "transform_config"),
])
def test_refusals(arguments, message, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    assert message in rotate(model, tmp_path / "out", code=1, **arguments).error


def test_order(tmp_path):
    model = tiny_models.save(tmp_path / "model")
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"quant_stage": {"quant_modifiers": {
        "QuantizationModifier": {"scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]}, "SpinQuantModifier": {}}}}))
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", recipe,
                  fragments=["put SpinQuantModifier first"])


def test_what_is_said(tmp_path):
    """The plan, the log and the summary have the same line."""
    model = tiny_models.save(tmp_path / "model", tie_word_embeddings=True)
    outcome = rotate(model, tmp_path / "out", more={"QuantizationModifier": {"scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]}})
    line = ("SpinQuantModifier: R1 of order 64 turns the residual stream, which 5 embeddings, linears and experts write and 11 "
            "linears read; R2 of order 16 turns the values of 2 attentions")
    assert line in outcome.errors
    recipe = (tmp_path / "out.yaml")
    planned = program.run("inspect", model, "--plan", "--json", "--recipe", recipe).json()
    assert planned["rewrites"] == [line]
    assert line in " ".join(program.run("inspect", model, "--plan", "--recipe", recipe).output.split())


@pytest.mark.parametrize("rotations, comparable", [(["R1"], False), (["R2"], True)])
def test_errors_of_layers(rotations, comparable, tmp_path):
    """R1 gives the residual stream another basis, in which the errors of single layers would mean nothing."""
    model = tiny_models.save(tmp_path / "model")
    rotate(model, tmp_path / "out", rotations=rotations)
    tokens = program.write_token_file(tmp_path / "tokens.safetensors", SAMPLES)
    outcome = program.run("eval", tmp_path / "out", "--reference", model, "--dataset", tokens)
    assert ("layers" in outcome.json()) == comparable
    assert ("is a rotation of the reference's" in outcome.errors) != comparable


def test_a_tensor_that_the_graph_does_not_read(tmp_path):
    model = tiny_models.save(tmp_path / "model")
    tiny_models.rewrite_tensors(model, {**tiny_models.tensors(model), "mtp.norm.weight": torch.ones(64)})
    assert "mtp.norm.weight" in rotate(model, tmp_path / "out", code=1).error
    rotate(model, tmp_path / "heads", rotations=["R2"])
    assert torch.equal(tiny_models.tensors(tmp_path / "heads")["mtp.norm.weight"], torch.ones(64))


# Families that no file of ours describes, and the rotations that their graphs allow.
IMPORTED = {
    "qwen3_5_text": ["R1"], "qwen3_5_moe_text": ["R1"], "qwen3_next": ["R1"], "gpt_oss": ["R1"], "glm4_moe": BOTH,
    "llama4_text": BOTH, "granitemoe": BOTH, "minimax_m2": BOTH, "ministral3": BOTH, "lfm2": BOTH, "granitemoehybrid": HEADS,
}


@pytest.mark.parametrize("family", nightly_but(IMPORTED, "lfm2"))
def test_imported_families(family, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = any_model.save(tmp_path / "model", family)
    rotate(model, tmp_path / "out", rotations=IMPORTED[family])
    samples = tiny_models.random_samples([19, 30], 256, seed=5)
    assert_equal(model, tmp_path / "out", lambda folder: any_model.logits(folder, samples))
    assert changed(model, tmp_path / "out")


@pytest.mark.parametrize("family", nightly_but(["glm4_moe", "ernie4_5_moe", "dots1", "hunyuan_v1_moe"], "glm4_moe"))
def test_routers_in_fp32(family, tmp_path, monkeypatch):
    """In a bf16 model they read the stream in another dtype, inside of an operator. The same as of the model in fp32, but for rounding."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = any_model.save(tmp_path / "model", family, dtype=torch.bfloat16)
    wide = shutil.copytree(model, tmp_path / "wide")
    tiny_models.rewrite_tensors(wide, {name: tensor.float() if tensor.dtype == torch.bfloat16 else tensor
                                       for name, tensor in tiny_models.tensors(model).items()})
    tiny_models.rewrite_config(wide, lambda config: config.update(dtype="float32"))
    for source, out in ((model, "out"), (wide, "expected")):
        rotate(source, tmp_path / out, rotations=["R1"])
    found, expected = tiny_models.tensors(tmp_path / "out"), tiny_models.tensors(tmp_path / "expected")
    routers = [name for name in found if re.search(r"mlp\.gate\.(wg\.)?weight$", name)]
    assert routers and found.keys() == expected.keys() and changed(model, tmp_path / "out").issuperset(routers)
    assert [name for name in found if (found[name].float() - expected[name]).norm() > 4e-3 * expected[name].norm()] == []


CODE = """
import torch
from torch.nn.functional import linear
from transformers import LlamaConfig, LlamaForCausalLM

class MineConfig(LlamaConfig):
    model_type = "mine"

class Gated(torch.nn.Module):
    def __init__(self, mlp, width, wide, features):
        super().__init__()
        self.mlp, self.gate = mlp, torch.nn.Linear(features, wide, bias=False)
        if {has_other}:
            self.other = torch.nn.Linear(width, width, bias=False)

    def forward(self, x):
        w, mlp = self.gate.weight.float(), self.mlp
        return mlp.down_proj(mlp.act_fn(mlp.gate_proj(x)) * mlp.up_proj(x) * torch.sigmoid({gate}).to(x.dtype))

class MineForCausalLM(LlamaForCausalLM):
    config_class = MineConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = Gated(layer.mlp, config.hidden_size, config.intermediate_size, config.hidden_size // {parts})
        self.post_init()
"""


@pytest.mark.parametrize("gate, parts, message", [
    pytest.param("linear(x.float(), w)", 1, None, marks=pytest.mark.nightly, id="whole rows"),
    pytest.param("linear(x.float(), w) + linear(self.other(x).float(), w)", 1, "mlp reads, which is no linear", id="a weight for two values"),
    pytest.param("linear(x.float(), w) + linear(torch.tanh(self.other(x)).float(), w)", 1, "mlp reads, which is no linear",
                 marks=pytest.mark.nightly, id="a weight for another value"),
    pytest.param("linear(x.view(*x.shape[:-1], 2, -1).float(), w).sum(-2)", 2, "mlp reads, which is no linear", marks=pytest.mark.nightly,
                 id="parts of rows")])
def test_linears_inside_of_operators(gate, parts, message, tmp_path, monkeypatch):
    """R1 turns their weights if nothing else reads them, and if they read whole rows."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tiny_models.save(tmp_path / "model")
    (model / "mine.py").write_text(CODE.format(gate=gate, parts=parts, has_other="other" in gate))
    tiny_models.rewrite_config(model, lambda config: config.update(
        model_type="mine", architectures=["MineForCausalLM"],
        auto_map={"AutoConfig": "mine.MineConfig", "AutoModelForCausalLM": "mine.MineForCausalLM"}))
    tensors = tiny_models.tensors(model)
    moved = {name.replace(".mlp.", ".mlp.mlp."): tensor for name, tensor in tensors.items()}
    wide, width = tensors["model.layers.0.mlp.up_proj.weight"].shape
    for layer in {name.split(".mlp.")[0] for name in moved if ".mlp." in name}:
        moved[f"{layer}.mlp.gate.weight"] = torch.randn(wide, width // parts)
        if "other" in gate:
            moved[f"{layer}.mlp.other.weight"] = torch.randn(width, width)
    tiny_models.rewrite_tensors(model, moved)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"quant_stage": {"quant_modifiers": {"SpinQuantModifier": {"rotations": ["R1"]}}}}))
    options = ["--output", tmp_path / "out", "--recipe", recipe, "--trust-remote-code", "--dtype", "fp32"]
    if message:
        program.fails("oneshot", model, *options, fragments=["R1 would change what this model computes", message])
        return
    program.run("oneshot", model, *options)
    rows = program.write_samples(tmp_path / "rows.jsonl", tiny_models.random_samples([19, 30], seed=5))
    compared = ["--reference", model, "--dataset", rows, "--dtype", "fp32", "--trust-remote-code"]
    assert abs(program.run("eval", tmp_path / "out", *compared).json()["kl_divergence"]) < 1e-6
    assert any(name.endswith("mlp.gate.weight") for name in changed(model, tmp_path / "out"))


def test_images_in_the_graph(tmp_path):
    """Cross-attentions read the projector's rows directly; only what they write is turned."""
    model = tiny_mllama.save(tmp_path / "model")
    rotate(model, tmp_path / "out")
    samples = [Sample(7), Sample(11, [5], [3]), Sample(13, [8, 1], [0, 7])]
    assert_equal(model, tmp_path / "out", lambda folder: tiny_mllama.their_logits(folder, samples))
    names = changed(model, tmp_path / "out")
    assert any("cross_attn.o_proj" in name for name in names)
    assert not any("multi_modal_projector" in name for name in names)


def test_images_outside_the_graph(tmp_path, monkeypatch):
    """R1 turns the projector's last linear, which the processor's images tell. Nothing of the vision part is changed by R2."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tiny_illustrated.save(tmp_path / "model", "llava")
    outcome = rotate(model, tmp_path / "refused", code=1, rotations=["R1"])
    assert "the checkpoint has no image processor: add its processor_config.json or preprocessor_config.json); use rotations: [R2]" in outcome.error
    rotate(model, tmp_path / "out", rotations=["R2"])
    samples = [tiny_illustrated.sample("llava", 11, 1), tiny_illustrated.sample("llava", 9, 0)]
    assert_equal(model, tmp_path / "out", lambda folder: tiny_illustrated.their_logits(folder, samples))
    assert not any("projector" in name or "vision" in name for name in changed(model, tmp_path / "out"))
    tiny_illustrated.save_processor(model)
    outcome = rotate(model, tmp_path / "turned", rotations=["R1"])
    assert "linears and experts and 2 tensors of the vision part write" in outcome.errors
    assert_equal(model, tmp_path / "turned", lambda folder: tiny_illustrated.their_logits(folder, samples))
    assert {name for name in changed(model, tmp_path / "turned") if "projector" in name or "vision" in name} == {
        "multi_modal_projector.linear_2.weight", "multi_modal_projector.linear_2.bias"}


HELPERS = Path(__file__).parents[2] / "python"
# A stand-in for the processors, some of which need torchvision: what they would make of a made image.
MADE_INPUTS = """
import sys
sys.path[:0] = {paths}
from layerpress_data.vision_processor import VisionProcessor
from support import tiny_illustrated
VisionProcessor.inputs = lambda self, content, folder: (tiny_illustrated.sample("{family}", 11, 1), 1)
"""


@pytest.fixture
def made_inputs(tmp_path, monkeypatch):
    """Makes the helper take a family's made inputs."""
    def use(family):
        helpers = tmp_path / "python"
        helpers.mkdir()
        for file in HELPERS.iterdir():
            (helpers / file.name).symlink_to(file)
        (helpers / "prepare.py").unlink()
        paths = [str(HELPERS), str(Path(__file__).parents[1])]
        (helpers / "prepare.py").write_text(MADE_INPUTS.format(paths=paths, family=family) + (HELPERS / "prepare.py").read_text())
        monkeypatch.setenv("LAYERPRESS_HELPER", str(helpers / "prepare.py"))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return use


@pytest.mark.parametrize("family", nightly_but(
    ("qwen3_5", "qwen3_5_moe", "qwen2_5_vl", "mistral3", "llama4", "qwen3_vl", "qwen3_vl_moe", "paligemma",
     "qwen2_audio"), "qwen3_vl"))
def test_vision_parts_outside_the_graph(family, tmp_path, made_inputs):
    """R1 turns the weights that write images' rows, too: of several mergers, and of layers that images are added to."""
    made_inputs(family)
    model = tiny_illustrated.save(tmp_path / "model", family)
    rotate(model, tmp_path / "out", rotations=["R1"])
    samples = [tiny_illustrated.sample(family, 11, 1), tiny_illustrated.sample(family, 9, 0), tiny_illustrated.sample(family, 14, 2)]
    assert_equal(model, tmp_path / "out", lambda folder: tiny_illustrated.their_logits(folder, samples))
    assert any("merger" in name or "projector" in name for name in changed(model, tmp_path / "out"))


@pytest.mark.nightly
def test_a_file_without_the_vision_part(tmp_path, made_inputs):
    """A GGUF has the language model alone, which the original's vision part would no longer fit."""
    made_inputs("llava")
    model = tiny_illustrated.save(tmp_path / "model", "llava", vocab_size=49152)
    shutil.copy(program.TEST_MODEL / "tokenizer.json", model)
    rounding = {"QuantizationModifier": {"scheme": "Q4_0", "targets": ["Linear"], "ignore": ["lm_head"]}}
    outcome = rotate(model, tmp_path / "out.gguf", code=1, more=rounding, rotations=["R1"])
    assert "the original's vision part would not fit it; use rotations: [R2]" in outcome.error
