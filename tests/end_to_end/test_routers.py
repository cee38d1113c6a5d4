"""Patterns that match everything leave the routers and gates of every mixture of experts that transformers has."""

import json

import pytest
import torch
from safetensors.torch import load_file
from support import any_model, program
from support.selection import nightly_but

EXPERTS = 8
FAMILIES = (
    "afmoe", "aria_text", "axk1", "axk2", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "ernie4_5_moe",
    "exaone_moe", "flex_olmo", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt_oss", "granitemoe", "granitemoehybrid", "granitemoeshared",
    "granitemoe_swa", "hy_v3", "hunyuan_v1_moe", "jamba", "jetmoe", "kimi_linear", "lfm2_moe", "llama4_text",
    "mimo_v2_flash", "minimax", "minimax_m2", "mixtral", "nemotron_h", "olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe_text", "qwen3_moe",
    "qwen3_next", "zaya")
RECIPE = {"a_stage": {"a_modifiers": {"QuantizationModifier": {"ignore": ["lm_head", "re:.*embed.*"], "config_groups": {
    "everything": {"targets": ["Linear", "re:.*"], "weights": {"num_bits": 8, "strategy": "channel"}}}}}}}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def tensors(folder):
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def weighing(name, tensor):
    """Whether a tensor weighs what experts compute, by its name and shape alone."""
    if name.endswith(".weight") and tensor.dim() == 2 and ".mlp.gate." in name:
        return True  # a router of several linears
    module = name.removesuffix(".weight")
    last = ".".join(module.split(".")[-2:])
    named = any(word in last for word in ("router", "gate", "wg")) and not any(word in last for word in ("gate_proj", "gate_up", "experts"))
    return name.endswith(".weight") and tensor.dim() == 2 and tensor.shape[0] in (1, EXPERTS) and named


@pytest.mark.parametrize("graph", ["builtin", "export"])
@pytest.mark.parametrize("family", nightly_but(FAMILIES, "qwen2_moe"))
def test_routers_stay(family, graph, tmp_path):
    if graph == "builtin" and family not in ("deepseek_v2", "deepseek_v3", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"):
        pytest.skip("has no graph of its own")
    model = any_model.save(tmp_path / "model", family)
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps(RECIPE))
    out = program.oneshot(model, tmp_path / "out", "--model-graph", graph, "--recipe", recipe)
    before, after = tensors(model), tensors(out)
    routers = [name for name, tensor in before.items() if weighing(name, tensor)]
    assert routers, sorted(name for name in before if ".0." in name)
    for name in routers:
        assert name in after and torch.equal(before[name], after[name]), name
    assert any(name.endswith("_packed") or tensor.dtype == torch.int8 for name, tensor in after.items())
