"""GPTQ on inputs that are rounded as the scheme says (rounded_inputs)."""

import json

import numpy
import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from support import compressed_cases, program, reference, tiny_models

MODULES = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32, "hidden_size": 128}


def recipe(path, scheme, before=None, **arguments):
    modifier = {"ignore": ["lm_head", "re:.*mlp.gate$"], **scheme, **arguments}
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": {**(before or {}), "GPTQModifier": modifier}}}))
    return path


def first_inputs(model):
    """What the first projections read."""
    tensors = tiny_models.tensors(model)
    tokens = numpy.concatenate(compressed_cases.SAMPLES)
    x = reference.as_float(tensors["model.embed_tokens.weight"])[tokens]
    x = x / numpy.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return torch.from_numpy(x[None] * reference.as_float(tensors["model.layers.0.input_layernorm.weight"])).float()


INT4 = {"num_bits": 4, "strategy": "token", "dynamic": True}
MXFP4 = {"num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True, "scale_dtype": torch.uint8}


@pytest.mark.parametrize("scheme, args", [
    ({"config_groups": {"group_0": {"targets": ["Linear"], "input_activations": INT4,
                                    "weights": {"num_bits": 4, "strategy": "group", "group_size": 64}}}}, INT4),
    ({"scheme": "MXFP4"}, MXFP4)], ids=["W4A4", "MXFP4"])
def test_statistics_are_those_of_rounded_inputs(scheme, args, tmp_path):
    """The power of the first projections' outputs, which the summary has, is that of compressed-tensors' rounded inputs."""
    model = tiny_models.save(tmp_path / "model", **compressed_cases.SIZES)
    samples = program.write_samples(tmp_path / "samples.jsonl", compressed_cases.SAMPLES)
    x = first_inputs(model)
    args = QuantizationArgs(**args)
    scale, zero_point = compute_dynamic_scales_and_zp(x, args, torch.nn.Linear(1, 1))
    rounded = fake_quantize(x, scale, zero_point, args)
    tensors = tiny_models.tensors(model)
    weight = torch.cat([torch.from_numpy(reference.as_float(tensors[module + ".weight"])).float() for module in MODULES])
    for chosen, inputs in ((False, x), (True, rounded)):
        program.oneshot(model, tmp_path / "out", "--overwrite", "--dataset", samples, "--dtype", "float32", "--recipe",
                        recipe(tmp_path / "recipe.json", scheme, rounded_inputs=chosen), "--summary", tmp_path / "summary.json")
        powers = {m["module"]: m["output_power"] for m in json.loads((tmp_path / "summary.json").read_text())["modules"]}
        wanted = (inputs @ weight.T).square().mean().item()
        assert [powers[module] for module in MODULES] == pytest.approx([wanted] * 3, rel=1e-3)
    assert (rounded - x).norm() > 0.05 * x.norm()


def test_smoothed_inputs_are_rounded(tmp_path):
    """Behind a transform, which multiplies the norm, the statistics are those of what it leaves."""
    model = tiny_models.save(tmp_path / "model", **compressed_cases.SIZES)
    samples = program.write_samples(tmp_path / "samples.jsonl", compressed_cases.SAMPLES)
    out = program.oneshot(model, tmp_path / "out", "--dataset", samples, "--dtype", "float32", "--recipe",
                          recipe(tmp_path / "recipe.json", {"scheme": "MXFP4"}, {"SmoothQuantModifier": {"smoothing_strength": 0.8}},
                                 rounded_inputs=True), "--summary", tmp_path / "summary.json")
    before, after = tiny_models.tensors(model), tiny_models.tensors(out)
    norm = "model.layers.0.input_layernorm.weight"
    scale = before[norm].float() / after[norm].float()
    assert scale.max() > 1.5 * scale.min()
    args = QuantizationArgs(**MXFP4)
    x = first_inputs(model) / scale
    rounded = fake_quantize(x, *compute_dynamic_scales_and_zp(x, args, torch.nn.Linear(1, 1)), args)
    weight = torch.cat([torch.from_numpy(reference.as_float(before[module + ".weight"])).float() for module in MODULES]) * scale
    powers = {m["module"]: m["output_power"] for m in json.loads((tmp_path / "summary.json").read_text())["modules"]}
    wanted = (rounded @ weight.T).square().mean().item()
    assert [powers[module] for module in MODULES] == pytest.approx([wanted] * 3, rel=1e-2)


UP_DOWN = {"SmoothQuantModifier": {"smoothing_strength": 0.7, "mappings": [
    [["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"], "re:.*input_layernorm"],
    [["re:.*gate_proj", "re:.*up_proj"], "re:.*post_attention_layernorm"], [["re:.*down_proj"], "re:.*up_proj"]]}}


@pytest.mark.parametrize("scheme", ["W4A16", "MXFP4"])
def test_weights_move_beside_smoothing(scheme, tmp_path):
    """The original model, which is not smoothed, is compared with the smoothed one."""
    model = tiny_models.save(tmp_path / "model", **compressed_cases.SIZES)
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([200] * 8, compressed_cases.VOCABULARY))
    errors, served = {}, ["--quantize-activations"] if scheme == "MXFP4" else []
    for before in ({}, UP_DOWN):
        for quality in ("balanced", "best"):
            out = program.oneshot(model, tmp_path / "out", "--overwrite", "--dataset", samples, "--quality", quality, "--recipe",
                                  recipe(tmp_path / "recipe.json", {"scheme": scheme}, before, rounded_inputs=scheme == "MXFP4"))
            found = program.run("eval", out, "--reference", model, "--dataset", samples, *served).json()
            errors[bool(before), quality] = found["layers"][-1]["relative_error"]
    assert errors[True, "best"] < errors[True, "balanced"]
    assert errors[True, "best"] < 1.2 * errors[False, "best"]


@pytest.mark.parametrize("family, more", [("Llama", {}), ("Qwen3Moe", EXPERTS)])
@pytest.mark.parametrize("scheme", ["NVFP4", "MXFP4"])
def test_the_served_model_is_nearer(family, more, scheme, tmp_path):
    """On the calibration samples, with inputs rounded as engines do."""
    model = tiny_models.save(tmp_path / "model", family, **(compressed_cases.SIZES | more))
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([200] * 8, compressed_cases.VOCABULARY))
    found = {}
    for chosen in (False, True):
        out = program.oneshot(model, tmp_path / str(chosen), "--dataset", samples, "--quality", "best", "--recipe",
                              recipe(tmp_path / "recipe.json", {"scheme": scheme}, rounded_inputs=chosen))
        found[chosen] = program.run("eval", out, "--reference", model, "--dataset", samples, "--quantize-activations").json()
    assert found[True]["layers"][-1]["relative_error"] < found[False]["layers"][-1]["relative_error"]


@pytest.mark.parametrize("modifiers, fragments", [
    ({"GPTQModifier": {"scheme": "W4A16", "rounded_inputs": True}}, ["rounded_inputs", "less than 8 bits"]),
])
def test_refused(modifiers, fragments, tmp_path):
    model = tiny_models.save(tmp_path / "model", **compressed_cases.SIZES)
    samples = program.write_samples(tmp_path / "samples.jsonl", compressed_cases.SAMPLES)
    (tmp_path / "recipe.json").write_text(json.dumps({"quant_stage": {"quant_modifiers": modifiers}}))
    program.fails("oneshot", model, "--output", tmp_path / "out", "--dataset", samples, "--recipe", tmp_path / "recipe.json",
                  fragments=fragments)
    assert not (tmp_path / "out").exists()
