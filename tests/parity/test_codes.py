"""Scales and codes against the slow reference: min-max scales, rounding to nearest, and what GPTQ may change of them."""

import json

import numpy
import pytest
import torch
from compressed_tensors.quantization import preset_name_to_scheme
from support import compressed_cases, program, reference, tiny_models

SCHEMES = ["W4A16", "W4A16_ASYM", "W2A16", "W3A16", "W8A16", "W8A8", "FP8_DYNAMIC", "FP8_BLOCK"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return compressed_cases.save_model(tmp_path_factory.mktemp("codes") / "model", intermediate_size=384)


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return program.write_samples(tmp_path_factory.mktemp("samples") / "a.jsonl", compressed_cases.calibration_samples())


def compress(model, folder, *arguments):
    """The stored modules of a run, by name."""
    program.oneshot(model, folder, *arguments)
    [scheme] = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
    tensors = tiny_models.tensors(folder)
    modules = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
    assert len(modules) == 14
    return {module: reference.Stored(tensors, module, scheme) for module in modules}


def original(model):
    return {name.removesuffix(".weight"): reference.as_float(tensor)
            for name, tensor in tiny_models.tensors(model).items() if tensor.dim() == 2}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_minmax_scales_and_nearest_codes(model, scheme, tmp_path):
    rounded = compress(model, tmp_path / "out", "--algorithm", "rtn", "--observer", "minmax", "--scheme", scheme)
    for module, stored in rounded.items():
        weight = original(model)[module]
        scale, zero_point = reference.minmax_parameters(weight, stored.args)
        assert numpy.array_equal(stored.stored_scale, scale)
        if zero_point is not None:
            spread = reference.spread(zero_point, stored.args, *weight.shape)
            assert numpy.array_equal(stored.zero_point, spread)
        assert numpy.array_equal(stored.codes, reference.round_to_nearest(weight, stored))


@pytest.mark.parametrize("kwargs", [{"patience": 1}, {"patience": 5}, {"expand": 1.3, "maxshrink": 0.5, "grid": 40}], ids=str)
@pytest.mark.parametrize("scheme", ["W4A16", "W4A16_ASYM", "W8A8", "FP8_BLOCK"])
def test_mse_scales_in_fp32(tmp_path, scheme, kwargs):
    """Of an fp32 checkpoint, so that nothing but the sums of the errors is rounded."""
    model = tiny_models.save(tmp_path / "model", dtype=torch.float32, **{**compressed_cases.SIZES, "num_hidden_layers": 1})
    weights = json.loads(preset_name_to_scheme(scheme, ["Linear"]).weights.model_dump_json())
    weights |= {"observer": "memoryless_mse", "observer_kwargs": kwargs}
    (tmp_path / "recipe.json").write_text(json.dumps(compressed_cases.recipe(
        "QuantizationModifier", compressed_cases.group(weights))))
    program.oneshot(model, tmp_path / "out", "--recipe", tmp_path / "recipe.json")
    [written] = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["config_groups"].values()
    tensors, equal = tiny_models.tensors(tmp_path / "out"), []
    for module, weight in original(model).items():
        if module + ".weight_scale" not in tensors:
            continue
        stored = reference.Stored(tensors, module, written)
        scale, zero_point = reference.mse_parameters(weight, stored.args, torch.float32, **kwargs)
        equal.append((stored.stored_scale == scale).ravel())
        if zero_point is not None:
            equal.append((stored.zero_point == reference.spread(zero_point, stored.args, *weight.shape)).ravel())
    assert numpy.concatenate(equal).mean() > 0.999


@pytest.mark.parametrize("observer", ["mse", "minmax"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_gptq_keeps_the_observer_s_scales(model, samples, scheme, observer, tmp_path):
    """GPTQ moves codes, never scales, and stays in their range."""
    how = ["--observer", observer, "--scheme", scheme]
    rounded = compress(model, tmp_path / "rounded", "--algorithm", "rtn", *how)
    solved = compress(model, tmp_path / "solved", "--dataset", samples, *how)
    for module, stored in solved.items():
        assert numpy.array_equal(stored.stored_scale, rounded[module].stored_scale)
        assert numpy.array_equal(stored.zero_point, rounded[module].zero_point)
        if stored.args["type"] == "int":
            limit = 1 << (stored.bits - 1)
            assert -limit <= stored.codes.min() and stored.codes.max() < limit
        assert (stored.codes != rounded[module].codes).any()


@pytest.mark.parametrize("scheme", ["W4A16", "W4A16_ASYM", "W8A8"])
def test_rounding_rounds_against_the_stored_scale(model, scheme, tmp_path):
    """Whatever the observer chose."""
    stored = compress(model, tmp_path / "out", "--algorithm", "rtn", "--observer", "mse", "--scheme", scheme)
    for module, each in stored.items():
        assert numpy.array_equal(each.codes, reference.round_to_nearest(original(model)[module], each))


def test_gptq_lowers_the_error_of_the_first_layer(model, samples, tmp_path):
    """The inputs of the first projections do not depend on the algorithm: there GPTQ must beat rounding by far."""
    how = ["--observer", "minmax", "--scheme", "W3A16"]
    rounded = compress(model, tmp_path / "rounded", "--algorithm", "rtn", *how)
    solved = compress(model, tmp_path / "solved", "--dataset", samples, *how)
    inputs = normalized_embeddings(model)
    for projection in ("q_proj", "k_proj", "v_proj"):
        module = f"model.layers.0.self_attn.{projection}"
        error_of = lambda stored: numpy.sum((inputs @ (stored.weight() - original(model)[module]).T) ** 2)
        assert error_of(solved[module]) < 0.7 * error_of(rounded[module])


def normalized_embeddings(model):
    """What the first projections read."""
    tensors = tiny_models.tensors(model)
    tokens = numpy.concatenate(compressed_cases.calibration_samples())
    x = reference.as_float(tensors["model.embed_tokens.weight"])[tokens]
    x = x / numpy.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
    return x * reference.as_float(tensors["model.layers.0.input_layernorm.weight"])


@pytest.mark.parametrize("modifier, options", [
    ("QuantizationModifier", []), ("GPTQModifier", []), ("QuantizationModifier", ["--pipeline", "sequential"]),
    ("GPTQModifier", ["--pipeline", "basic"]), ("GPTQModifier", ["--sequential-targets", "Linear,Embedding"]),
    ("GPTQModifier", ["--sequential-targets", "Linear"]), ("GPTQModifier", ["--quality", "best"]),
])
def test_embeddings_are_rounded(model, samples, modifier, options, tmp_path):
    """Whatever becomes of the linears; min-max scales are compressed-tensors'."""
    recipe = compressed_cases.recipe(
        modifier,
        compressed_cases.group(compressed_cases.weights(4, "group", group_size=64, observer="minmax"),
                               ["Linear", "Embedding"]))
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    program.oneshot(model, tmp_path / "out", "--recipe", tmp_path / "recipe.json", "--dataset", samples, *options)
    [scheme] = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["config_groups"].values()
    stored = reference.Stored(tiny_models.tensors(tmp_path / "out"), "model.embed_tokens", scheme)
    weight = original(model)["model.embed_tokens"]
    assert numpy.array_equal(stored.stored_scale, reference.minmax_parameters(weight, stored.args)[0])
    assert numpy.array_equal(stored.codes, reference.round_to_nearest(weight, stored))
