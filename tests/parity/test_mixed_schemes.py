"""Several schemes in one recipe, by GPTQ and by rounding: a group for each in the config, and what engines fuse has one."""

import json

import pytest
import torch
from support import deep_model, program, ranked_runs, tiny_models
from support.compressed_cases import CACHE_FP8, FOUR_SCHEMES, GPTQ, NVFP4, ROUNDING, TOKEN_FP8, group, weights
from support.selection import nightly_but
from support.watched_runs import check_resumed

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SIZES = {"hidden_size": 64, "intermediate_size": 128}
FP8 = weights(8, "channel", type="float")
INPUTS = {**NVFP4, "dynamic": "local", "observer": "static_minmax"}
FORMATS = {"gate_proj": "nvfp4-pack-quantized", "up_proj": "nvfp4-pack-quantized", "down_proj": "pack-quantized",
           "q_proj": "float-quantized", "k_proj": "float-quantized", "v_proj": "float-quantized", "o_proj": "mxfp8-quantized"}


def stage(*modifiers):
    return {"quant_stage": {"quant_modifiers": dict(modifiers)}}


def recipe_of(folder, recipe):
    path = folder / "recipe.json"
    path.write_text(json.dumps(recipe))
    return path


def samples_in(folder):
    return program.write_samples(folder / "samples.jsonl", tiny_models.random_samples([40, 17, 64, 33]))


def run(model, folder, recipe, *options):
    folder.mkdir(exist_ok=True)
    return program.oneshot(model, folder / "out", "--recipe", recipe_of(folder, recipe), "--dataset", samples_in(folder), *options)


@pytest.mark.parametrize("graph", nightly_but(["builtin", "export"], "builtin"))
def test_a_group_for_each_scheme(graph, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16, **SIZES)
    output = run(model, tmp_path / "mixed", FOUR_SCHEMES, "--model-graph", graph)
    config = json.loads((output / "config.json").read_text())["quantization_config"]
    assert config["format"] == "mixed-precision" and config["kv_cache_scheme"]["num_bits"] == 8
    found = {target: scheme["format"] for scheme in config["config_groups"].values() for target in scheme["targets"]}
    assert sorted(found.values()) == sorted(["nvfp4-pack-quantized", "pack-quantized", "float-quantized", "mxfp8-quantized"])
    tensors = tiny_models.tensors(output)
    kinds = {"nvfp4-pack-quantized": {"weight_packed", "weight_scale", "weight_global_scale", "input_global_scale"},
             "pack-quantized": {"weight_packed", "weight_scale", "weight_shape"},
             "float-quantized": {"weight", "weight_scale", "input_scale"}, "mxfp8-quantized": {"weight", "weight_scale"}}
    for leaf, name in FORMATS.items():
        for layer in range(2):
            prefix = f"model.layers.{layer}.{'mlp' if leaf[0] in 'gud' else 'self_attn'}.{leaf}."
            assert {key.removeprefix(prefix) for key in tensors if key.startswith(prefix)} == kinds[name], prefix
    # What is rounded does not depend on what is solved beside it.
    alone = tiny_models.tensors(run(model, tmp_path / "alone", {"quant_stage": {"quant_modifiers": {
        ROUNDING: FOUR_SCHEMES["quant_stage"]["quant_modifiers"][ROUNDING]}}}, "--model-graph", graph))
    for key in alone:
        if ".self_attn." in key and key.rsplit(".", 1)[1].startswith("weight"):
            assert torch.equal(alone[key].view(torch.uint8), tensors[key].view(torch.uint8)), key


def test_a_global_scale_across_modifiers(tmp_path):
    """One projection is solved, with wider ranges, and the one that engines fuse with it is rounded."""
    model = tiny_models.save(tmp_path / "model", **SIZES)
    both = stage((GPTQ, {"config_groups": {"group_0": group(NVFP4, ["re:.*gate_proj$"], input_activations=INPUTS)}}),
                 (ROUNDING, {"config_groups": {"group_0": group(NVFP4, ["re:.*up_proj$"], input_activations=INPUTS)}}))
    tensors = tiny_models.tensors(run(model, tmp_path / "mixed", both))
    for layer in range(2):
        for name in ("weight_global_scale", "input_global_scale"):
            gate, up = (tensors[f"model.layers.{layer}.mlp.{leaf}_proj.{name}"] for leaf in ("gate", "up"))
            assert torch.equal(gate, up), name


REFUSED = {
    "NVFP4 beside fp8 in q/k/v": ("Llama", {}, stage((ROUNDING, {"config_groups": {
        "a": group(NVFP4, ["re:.*q_proj$"]), "b": group(FP8, ["re:.*[kv]_proj$"])}})), ["q_proj", "k_proj", "fuse"]),
    "only some of q/k/v": ("Llama", {}, stage((ROUNDING, {"config_groups": {"a": group(NVFP4, ["re:.*[qk]_proj$"])}})),
                           ["q_proj", "v_proj", "fuse"]),
    "gate and up of two modifiers": ("Llama", {}, stage(
        (GPTQ, {"scheme": "NVFP4A16", "targets": ["re:.*gate_proj$"]}),
        (ROUNDING, {"scheme": "MXFP4A16", "targets": ["re:.*up_proj$"]})), ["gate_proj", "up_proj", "fuse"]),
    "with and without quantized inputs": ("Llama", {}, stage((ROUNDING, {"config_groups": {
        "a": group(NVFP4, ["re:.*gate_proj$"], input_activations=INPUTS), "b": group(NVFP4, ["re:.*up_proj$"])}})),
        ["gate_proj", "up_proj", "fuse"]),
    "an expert of its own": ("Qwen3Moe", EXPERTS, stage((ROUNDING, {"config_groups": {
        "a": group(NVFP4, [r"re:.*experts\.[0-2]\..*_proj$"]),
        "b": group(FP8, [r"re:.*experts\.3\..*_proj$"], input_activations=TOKEN_FP8)}})), ["experts.3", "experts.0", "as one"]),
    "experts' down": ("Qwen3Moe", EXPERTS, stage((GPTQ, {"config_groups": {
        "a": group(NVFP4, [r"re:.*experts\.\d+\.(gate|up)_proj$"]), "b": group(FP8, [r"re:.*experts\.\d+\.down_proj$"])}})),
        ["experts.0.down_proj", "experts.0.gate_proj", "as one"]),
    "both down of latent attention": ("DeepseekV3", {}, stage((ROUNDING, {"config_groups": {
        "a": group(NVFP4, ["re:.*q_a_proj$"]), "b": group(FP8, ["re:.*kv_a_proj_with_mqa$"])}})),
        ["q_a_proj", "kv_a_proj_with_mqa", "fuse"]),
    "two caches": ("Llama", {}, stage(
        (GPTQ, {"scheme": "NVFP4A16", "targets": ["re:.*mlp.*_proj$"], "kv_cache_scheme": CACHE_FP8}),
        (ROUNDING, {"scheme": "FP8_DYNAMIC", "targets": ["re:.*self_attn.*_proj$"],
                    "kv_cache_scheme": {**CACHE_FP8, "strategy": "attn_head"}})), ["self_attn", "keys and values differently"]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_engines_run_as_one_must_agree(name, tmp_path):
    check_refused(name, "builtin", tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["NVFP4 beside fp8 in q/k/v", "experts' down", "both down of latent attention"])
def test_the_same_of_exported_graphs(name, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check_refused(name, "export", tmp_path)


def check_refused(name, graph, tmp_path):
    family, settings, recipe, fragments = REFUSED[name]
    model = tiny_models.save(tmp_path / "model", family, **settings)
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", recipe_of(tmp_path, recipe), "--dataset",
                  samples_in(tmp_path), "--model-graph", graph, fragments=fragments)
    assert not (tmp_path / "out").exists()


def test_killed_and_resumed(tmp_path):
    """Static scales of inputs, averages among them, and of the cache are found again or measured again."""
    model = deep_model.save(tmp_path)
    arguments = ["--recipe", recipe_of(tmp_path, FOUR_SCHEMES), "--dataset", tmp_path / "tokens.safetensors", "--threads", "1"]
    check_resumed(model, tmp_path, *arguments)


def test_ranks_find_the_same_scales(tmp_path):
    """Maxima are merged exactly; the recipe solves nothing, so that they come from the same activations."""
    model = tiny_models.save(tmp_path / "model", **SIZES)
    rounding = {**FOUR_SCHEMES["quant_stage"]["quant_modifiers"][ROUNDING]}
    path, samples = recipe_of(tmp_path, stage((ROUNDING, rounding))), samples_in(tmp_path)
    options = ["--recipe", path, "--dataset", samples, "--threads", "1"]
    alone = tiny_models.tensors(program.oneshot(model, tmp_path / "one", *options))
    together = tiny_models.tensors(ranked_runs.run(2, model, tmp_path / "two", *options))
    scales = [key for key in alone if key.endswith(("input_scale", "k_scale", "v_scale"))]
    assert len(scales) == 2 * 5
    for key in scales:
        assert torch.allclose(alone[key].double(), together[key].double(), rtol=1e-6, atol=0), key
