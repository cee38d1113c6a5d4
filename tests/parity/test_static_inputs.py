"""Static scales of inputs: LLM Compressor's on the same tokens, in files that transformers and compressed-tensors load."""

import json
from pathlib import Path

import numpy
import peer_scales_cases as cases
import pytest
import torch
from support import program, ranked_runs, tiny_models
from support.selection import nightly_but

PEER = json.loads(Path(__file__).with_name("peer_scales.json").read_text())["static"]
FP8_MAXIMUM = 448


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return program.write_samples(tmp_path_factory.mktemp("samples") / "a.jsonl",
                                 tiny_models.random_samples(cases.LENGTHS))


def recipe(folder, arguments, modifier="QuantizationModifier"):
    path = folder / "recipe.json"
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": {modifier: {"ignore": cases.IGNORED, **arguments}}}}))
    return path


def compress(name, samples, folder, *options, **more):
    return compress_by(cases.STATIC[name], samples, folder, *options, **more)


def compress_by(case, samples, folder, *options, dtype=torch.float32, ranks=1, modifier="QuantizationModifier"):
    family, settings, arguments = case
    model = tiny_models.save(folder / "model", family, dtype=dtype, **settings)
    options = ["--recipe", recipe(folder, arguments, modifier), "--dataset", samples, *options]
    if ranks > 1:
        return model, ranked_runs.run(ranks, model, folder / "out", *options)
    return model, program.oneshot(model, folder / "out", *options)


def check_inputs(name, tensors):
    """All scales and zero points of inputs; a symmetric scheme stores no zero point."""
    has_zero_points = any(key.endswith("input_zero_point") for key in tensors)
    assert has_zero_points == (cases.STATIC[name][2].get("config_groups", {}).get("group_0", {}).get(
        "input_activations", {}).get("symmetric") is False)
    wanted = {key: value for key, value in PEER[name].items()
              if key.endswith("input_scale") or (has_zero_points and key.endswith("input_zero_point"))}
    assert {key for key in tensors if key.endswith(("input_scale", "input_zero_point"))} == set(wanted)
    for key, value in wanted.items():
        assert numpy.allclose(tensors[key].double().numpy(), value, rtol=1e-3, atol=0), key


@pytest.mark.parametrize("name", cases.STATIC)
def test_scales_equal_the_peer_s(name, samples, tmp_path):
    _, output = compress(name, samples, tmp_path)
    tensors = tiny_models.tensors(output)
    check_inputs(name, tensors)
    [group] = json.loads((output / "config.json").read_text())["quantization_config"]["config_groups"].values()
    inputs = group["input_activations"]
    assert (inputs["dynamic"], inputs["strategy"]) == (False, "tensor")
    arguments = cases.STATIC[name][2]
    asked = arguments.get("input_observer") or arguments.get("observer", {}).get("input") or arguments.get(
        "config_groups", {}).get("group_0", {}).get("input_activations", {}).get("observer", "minmax")
    assert inputs["observer"] == ("static_minmax" if name in ("fp8", "fp8-experts") else asked)


@pytest.mark.parametrize("options", [["--pipeline", "basic"], ["--sequential-targets", "Linear"],
                                     ["--sequential-offload-device", "disk", "--batch-tokens", "70"]],
                         ids=["basic", "cut at linears", "disk"])
@pytest.mark.parametrize("name", nightly_but(["fp8", "int8-default"], "int8-default"))
def test_scales_do_not_depend_on_the_way(name, options, samples, tmp_path):
    check_inputs(name, tiny_models.tensors(compress(name, samples, tmp_path, *options)[1]))


@pytest.mark.parametrize("name", ["fp8", "int8-default"])
def test_scales_on_two_ranks(name, samples, tmp_path):
    """Averages over samples go by the order of the whole calibration set."""
    check_inputs(name, tiny_models.tensors(compress(name, samples, tmp_path, ranks=2)[1]))


@pytest.mark.parametrize("name", ["fp8", "int8-asymmetric"])
def test_names_dtypes_and_shapes(name, samples, tmp_path):
    _, output = compress(name, samples, tmp_path, dtype=torch.bfloat16)
    tensors = tiny_models.tensors(output)
    module = "model.layers.1.mlp.down_proj."
    found = {key.removeprefix(module): (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items()
             if key.startswith(module)}
    scale = (torch.bfloat16, (1,))
    if name == "fp8":
        assert found == {"weight": (torch.float8_e4m3fn, (64, 96)), "weight_scale": scale, "input_scale": scale}
    else:
        assert found == {"weight": (torch.int8, (64, 96)), "weight_scale": (torch.bfloat16, (64, 1)), "input_scale": scale,
                         "input_zero_point": (torch.int8, (1,))}


@pytest.mark.parametrize("name", nightly_but(["fp8", "int8", "int8-asymmetric", "fp8-channels"], "fp8", "int8-asymmetric"))
def test_opens_in_transformers(name, samples, tmp_path):
    """With compressed-tensors, which quantizes the inputs by these scales."""
    model, output = compress(name, samples, tmp_path)
    loaded = tiny_models.load(output)
    layer = loaded.model.layers[0].mlp.down_proj
    stored = tiny_models.tensors(output)["model.layers.0.mlp.down_proj.input_scale"]
    assert torch.equal(layer.input_scale.flatten(), stored.flatten())
    arguments = {"scheme": "FP8_DYNAMIC" if name.startswith("fp8") else "W8A8", "weight_observer": "minmax"}
    dynamic = program.oneshot(model, tmp_path / "dynamic", "--recipe", recipe(tmp_path, arguments))
    text = tiny_models.random_samples([40], seed=9)
    expected = tiny_models.logits(model, text)[0]
    errors = [numpy.abs(expected - tiny_models.logits(folder, text)[0]).mean() for folder in (output, dynamic)]
    assert 0.5 < errors[0] / errors[1] < 2  # inputs are rounded about as well as with scales of their own


def test_with_gptq_in_one_pass(samples, tmp_path):
    """The range of the inputs that linears get in the compressed model."""
    model = tiny_models.save(tmp_path / "model")
    path = recipe(tmp_path, {"scheme": "FP8", "weight_observer": "minmax"}, "GPTQModifier")
    output = program.oneshot(model, tmp_path / "out", "--recipe", path, "--dataset", samples)
    tensors = tiny_models.tensors(output)
    plain = tiny_models.load(model)
    modules, largest = dict(plain.named_modules()), {}
    with torch.no_grad():
        for key, codes in tensors.items():
            if codes.dtype == torch.float8_e4m3fn:
                modules[key.removesuffix(".weight")].weight.copy_(codes.float() * tensors[key + "_scale"].float())
        for name, module in modules.items():
            if name + ".input_scale" in tensors:
                module.register_forward_pre_hook(lambda _, inputs, name=name: largest.__setitem__(
                    name, max(largest.get(name, 0), inputs[0].abs().max().item())))
        for sample in tiny_models.random_samples(cases.LENGTHS):
            plain(torch.tensor([sample]))
    assert len(largest) == 14
    for name, value in largest.items():
        assert tensors[name + ".input_scale"].item() == pytest.approx(value / FP8_MAXIMUM, rel=1e-3), name


def test_after_smoothing(samples, tmp_path):
    """The range of smoothed inputs follows from that of each channel."""
    model = tiny_models.save(tmp_path / "model")
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": {
        "SmoothQuantModifier": {}, "QuantizationModifier": {"scheme": "FP8", "ignore": cases.IGNORED}}}}))
    output = program.oneshot(model, tmp_path / "out", "--recipe", path, "--dataset", samples)
    tensors, name = tiny_models.tensors(output), "model.layers.0.input_layernorm"
    smooth, largest = tiny_models.load(model), []
    norm = dict(smooth.named_modules())[name]
    norm.weight.data.copy_(tensors[name + ".weight"])
    norm.register_forward_hook(lambda *arguments: largest.append(arguments[2].abs().max().item()))
    with torch.no_grad():
        for sample in tiny_models.random_samples(cases.LENGTHS):
            smooth(torch.tensor([sample]))
    found = tensors["model.layers.0.self_attn.q_proj.input_scale"].item()
    assert found == pytest.approx(max(largest) / FP8_MAXIMUM, rel=1e-3)


@pytest.mark.parametrize(("inputs", "fragment"), [
    ({"observer": "memoryless_minmax"}, "static_minmax, minmax and mse"),
    ({"observer": "minmax", "observer_kwargs": {"averaging_constant": 0}}, "averaging_constant"),
    ({"strategy": "group", "group_size": 32}, "strategy group"),
    ({"symmetric": False}, "asymmetric floating point"),
])
def test_bad_inputs_are_refused(inputs, fragment, samples, tmp_path):
    arguments = cases.group(cases.FLOAT, type="float", **inputs)
    model = tiny_models.save(tmp_path / "model")
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", recipe(tmp_path, arguments), "--dataset", samples,
                  fragments=[fragment])


def test_averages_do_not_go_with_smoothing(samples, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": {
        "SmoothQuantModifier": {}, "QuantizationModifier": {"scheme": "FP8", "input_observer": "minmax"}}}}))
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", path, "--dataset", samples,
                  fragments=["write `observer: static_minmax` beside"])


def test_needs_data(tmp_path):
    model = tiny_models.save(tmp_path / "model")
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", recipe(tmp_path, {"scheme": "FP8"}),
                  "--pipeline", "datafree", fragments=["static scales of inputs"], code=2)
