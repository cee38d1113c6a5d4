"""SmoothQuant's scales against those of LLM Compressor on the same tokens (peer_scales.py)."""

import json
from pathlib import Path

import numpy
import peer_scales_cases as cases
import pytest
import torch
from support import program, ranked_runs, tiny_models
from support.selection import nightly_but

RECORD = json.loads(Path(__file__).with_name("peer_scales.json").read_text())
PEER = RECORD["smoothing"]


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return program.write_samples(tmp_path_factory.mktemp("samples") / "a.jsonl",
                                 tiny_models.random_samples(cases.LENGTHS))


def recipe(folder, **modifiers):
    """Modifiers in the order in which they are given."""
    path = folder / "recipe.json"
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": modifiers}}))
    return path


def divisors(before, after, name, family):
    """The scale by which a layer's channels were divided. Weights of Gemma's norms are offsets from one."""
    offset = 1 if family.startswith("Gemma") else 0
    old, new = before[name + ".weight"].double() + offset, after[name + ".weight"].double() + offset
    ratio = old / new
    return ratio if ratio.dim() == 1 else ratio.median(dim=1).values


def smooth(name, samples, folder, *options):
    family, settings, arguments = cases.SMOOTHED[name]
    model = tiny_models.save(folder / "model", family, **settings)
    output = program.oneshot(model, folder / "out", "--recipe", recipe(folder, SmoothQuantModifier=arguments),
                             "--dataset", samples, *options)
    return family, model, output


@pytest.mark.parametrize("name", cases.SMOOTHED)
def test_scales_equal_the_peer_s(name, samples, tmp_path):
    family, model, output = smooth(name, samples, tmp_path)
    before, after = tiny_models.tensors(model), tiny_models.tensors(output)
    assert before.keys() == after.keys()
    for layer, scales in PEER[name].items():
        found = divisors(before, after, layer, family).numpy()
        assert numpy.allclose(found, scales, rtol=1e-3, atol=0), layer
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    assert {layer + ".weight" for layer in PEER[name]} <= changed
    assert "quantization_config" not in json.loads((output / "config.json").read_text())


@pytest.mark.parametrize("name", nightly_but(cases.SMOOTHED, "llama-linears", "cohere2", "mixtral"))
def test_the_model_computes_the_same(name, samples, tmp_path):
    _, model, output = smooth(name, samples, tmp_path)
    text = tiny_models.random_samples([23, 9], seed=8)
    for expected, found in zip(tiny_models.logits(model, text), tiny_models.logits(output, text), strict=True):
        assert numpy.abs(expected - found).max() < 1e-5 * numpy.abs(expected).max()


@pytest.mark.parametrize("options", [["--pipeline", "basic"], ["--sequential-targets", "Linear"],
                                     ["--sequential-offload-device", "disk", "--batch-tokens", "70"]],
                         ids=["basic", "cut at linears", "disk"])
def test_scales_do_not_depend_on_the_way(options, samples, tmp_path):
    _, model, output = smooth("llama", samples, tmp_path, *options)
    before, after = tiny_models.tensors(model), tiny_models.tensors(output)
    for layer, scales in PEER["llama"].items():
        assert numpy.allclose(divisors(before, after, layer, "Llama").numpy(), scales, rtol=1e-3), layer


def test_scales_on_two_ranks(samples, tmp_path):
    """Ranges are merged as maxima and minima."""
    model = tiny_models.save(tmp_path / "model")
    ranked_runs.run(2, model, tmp_path / "out", "--recipe", recipe(tmp_path, SmoothQuantModifier={}), "--dataset", samples)
    before, after = tiny_models.tensors(model), tiny_models.tensors(tmp_path / "out")
    for layer, scales in PEER["llama"].items():
        assert numpy.allclose(divisors(before, after, layer, "Llama").numpy(), scales, rtol=1e-3), layer


def share_of_equal(found, name):
    """Of the scales, the least over the parameters."""
    shares = []
    for parameter, expected in RECORD["importance"][name].items():
        ours = found[parameter].flatten()
        values = torch.exp2(ours.double() - 127) if ours.dtype == torch.uint8 else ours.double()
        shares.append(numpy.isclose(values.numpy(), expected, rtol=1e-5).mean())
    return min(shares)


@pytest.mark.parametrize("name", cases.IMPORTANCE)
def test_importance_chooses_the_peer_s_ranges(name, samples, tmp_path):
    """Searches of observers that weigh errors with inputs. With bf16 weights LLM Compressor also rounds each error's parts to bf16, which
    decides between ranges that are nearly as good."""
    family, settings, arguments = cases.IMPORTANCE[name]
    model = tiny_models.save(tmp_path / "model", family, dtype=torch.bfloat16 if name.endswith("bf16") else torch.float32, **settings)
    output = program.oneshot(model, tmp_path / "out", "--recipe", recipe(tmp_path, QuantizationModifier=arguments), "--dataset", samples)
    assert share_of_equal(tiny_models.tensors(output), name) > (0.85 if name.endswith("bf16") else 0.99)


def test_importance_on_two_ranks(samples, tmp_path):
    """The global scale follows from the chosen ranges of all rows of q, k and v."""
    family, settings, arguments = cases.IMPORTANCE["nvfp4"]
    model = tiny_models.save(tmp_path / "model", family, **settings)
    ranked_runs.run(2, model, tmp_path / "out", "--recipe", recipe(tmp_path, QuantizationModifier=arguments), "--dataset", samples)
    assert share_of_equal(tiny_models.tensors(tmp_path / "out"), "nvfp4") > 0.99


def quantized(model, samples, folder, quantizer, smoothing=True, **more):
    groups = {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 8, "type": "int", "strategy": "channel", "observer": "minmax"}, "input_activations": {
        "num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}}}
    modifiers = {"SmoothQuantModifier": {}} if smoothing else {}
    modifiers[quantizer] = {"ignore": ["lm_head"], "config_groups": groups, **more}
    folder.mkdir()
    return program.oneshot(model, folder / "out", "--recipe", recipe(folder, **modifiers), "--dataset", samples)


@pytest.mark.parametrize("quantizer", ["GPTQModifier", "QuantizationModifier"])
def test_then_quantized_opens_in_transformers(quantizer, samples, tmp_path):
    """The codes are those of smoothed weights, and the norms are smoothed, too."""
    model = tiny_models.save(tmp_path / "model")
    output = quantized(model, samples, tmp_path / "smooth", quantizer)
    before, after = tiny_models.tensors(model), tiny_models.tensors(output)
    scales = PEER["llama"]["model.layers.0.input_layernorm"]
    assert numpy.allclose(divisors(before, after, "model.layers.0.input_layernorm", "Llama").numpy(), scales, rtol=1e-3)
    module = "model.layers.0.self_attn.q_proj"
    weight = after[module + ".weight"].double() * after[module + ".weight_scale"].double()
    wanted = before[module + ".weight"].double() * torch.tensor(scales).double()
    assert (weight - wanted).norm() < 0.02 * wanted.norm()
    text = tiny_models.random_samples([40], seed=9)
    expected, found = tiny_models.logits(model, text)[0], tiny_models.logits(output, text)[0]
    assert numpy.abs(expected - found).mean() < 0.1 * numpy.abs(expected).mean()


def test_gptq_solves_with_the_smoothed_inputs(samples, tmp_path):
    """The Gram matrix is scaled instead of computed again: GPTQ on a smoothed checkpoint finds the same codes."""
    _, model, smoothed = smooth("llama", samples, tmp_path)
    at_once = tiny_models.tensors(quantized(model, samples, tmp_path / "one", "GPTQModifier"))
    in_two = tiny_models.tensors(quantized(smoothed, samples, tmp_path / "two", "GPTQModifier", smoothing=False))
    for module in ["q_proj", "k_proj", "v_proj"]:
        name = f"model.layers.0.self_attn.{module}.weight"
        assert (at_once[name] != in_two[name]).float().mean() < 0.01, name


def test_recipe_that_llm_compressor_wrote(samples, tmp_path):
    """It writes the mappings that it chose as tuples."""
    model = tiny_models.save(tmp_path / "model")
    path = tmp_path / "recipe.yaml"
    path.write_text("""quant_stage:
  quant_modifiers:
    SmoothQuantModifier:
      requires_calibration_data: true
      smoothing_strength: 0.5
      mappings:
      - !!python/tuple
        - ['re:.*q_proj', 're:.*k_proj', 're:.*v_proj']
        - re:.*input_layernorm
      - !!python/tuple
        - ['re:.*gate_proj', 're:.*up_proj']
        - re:.*post_attention_layernorm
      ignore: []
      algorithm: smoothquant
""")
    output = program.oneshot(model, tmp_path / "out", "--recipe", path, "--dataset", samples)
    before, after = tiny_models.tensors(model), tiny_models.tensors(output)
    for layer, scales in PEER["llama"].items():
        assert numpy.allclose(divisors(before, after, layer, "Llama").numpy(), scales, rtol=1e-3), layer


def test_bad_mappings_are_refused(samples, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    for mappings, fragment in [
            ([[["re:.*o_proj"], "re:.*v_proj"]], "grouped heads"),
            ([[["re:.*nothing"], "re:.*input_layernorm"]], "mappings[0]"),
            ([["re:.*q_proj"]], "[[balance layers], smooth layer]")]:
        program.fails("oneshot", model, "--output", tmp_path / "out", "--dataset", samples, "--recipe",
                      recipe(tmp_path, SmoothQuantModifier={"mappings": mappings}), fragments=[fragment])
    program.fails("oneshot", model, "--output", tmp_path / "out", "--dataset", samples, "--recipe",
                  recipe(tmp_path, GPTQModifier={"scheme": "W8A8", "ignore": ["lm_head"]}, SmoothQuantModifier={}),
                  fragments=["put SmoothQuantModifier first"])
