"""AWQ's scales against those of LLM Compressor on the same tokens (peer_scales.py), and what is done with them."""

import json
from pathlib import Path

import numpy
import peer_scales_cases as cases
import pytest
import torch
from support import program, ranked_runs, tiny_models
from transformers import AutoModelForCausalLM

PEER = json.loads(Path(__file__).with_name("peer_scales.json").read_text())["activation_aware"]
W4 = {"num_bits": 4, "strategy": "group", "group_size": 32}
ALL = {"ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": W4}}}


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    return program.write_samples(tmp_path_factory.mktemp("samples") / "a.jsonl", tiny_models.random_samples(cases.LENGTHS))


def recipe(folder, **modifiers):
    path = folder / "recipe.json"
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": modifiers}}))
    return path


def divisors(before, after, layer):
    """The scale by which a layer's channels were divided."""
    ratio = before[layer + ".weight"].double() / after[layer + ".weight"].double()
    return (ratio if ratio.dim() == 1 else ratio.median(dim=1).values).numpy()


def case_run(name, samples, folder, *options, run=program.oneshot):
    family, settings, awq, quantization = cases.ACTIVATION_AWARE[name]
    model = tiny_models.save(folder / "model", family, **settings)
    path = recipe(folder, AWQModifier=awq, QuantizationModifier={"ignore": cases.IGNORED, **quantization})
    run(model, folder / "out", "--recipe", path, "--dataset", samples, *options)
    return tiny_models.tensors(model), tiny_models.tensors(folder / "out")


def on_two_ranks(model, output, *options):
    ranked_runs.run(2, model, output, *options)


@pytest.mark.parametrize("name", cases.ACTIVATION_AWARE)
def test_scales_equal_the_peer_s(name, samples, tmp_path):
    before, after = case_run(name, samples, tmp_path)
    assert PEER[name]
    for layer, scales in PEER[name].items():
        assert numpy.allclose(divisors(before, after, layer), scales, rtol=1e-3), layer


def rounded(weight, chunk, bits):
    """To nearest, with symmetric min-max scales."""
    parts = weight.reshape(-1, chunk)
    scale = parts.abs().amax(1, keepdim=True) / ((2 ** bits - 1) / 2)
    return (torch.clamp(torch.round(parts / scale), -2 ** (bits - 1), 2 ** (bits - 1) - 1) * scale).reshape(weight.shape)


def textbook(model, samples, chunk, bits):
    """Candidates for the scale between the second norm and the linears of the MLP, and their losses, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager")
    mlp, inputs = model.model.layers[0].mlp, []
    hook = mlp.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0].detach()))
    for sample in samples:
        model(torch.tensor(sample)[None], use_cache=False)
    hook.remove()

    def outputs():
        found = [mlp(x) for x in inputs]
        return torch.cat([(y[0] if isinstance(y, tuple) else y).flatten(0, -2) for y in found])

    experts = getattr(mlp, "experts", None)
    weights = list(experts.gate_up_proj.data) if experts is not None else [mlp.gate_proj.weight.data, mlp.up_proj.weight.data]
    x = torch.cat([x.flatten(0, -2) for x in inputs]).abs().mean(0)
    normalized = [(w.abs().reshape(-1, chunk) / (w.abs().reshape(-1, chunk).amax(1, keepdim=True) + 1e-6)).reshape(w.shape)
                  for w in weights]
    w = torch.cat(normalized).double().mean(0)
    expected, before, tried = outputs(), [weight.clone() for weight in weights], []
    for ratio, duo in [(0, False)] + [(i / 18, True) for i in range(19)]:
        scale = (x.pow(ratio) / (w.pow(1 - ratio) + 1e-4) if duo else x.pow(ratio)).clamp(min=1e-4).float()
        scale = scale / (scale.max() * scale.min()).sqrt()
        for weight, original in zip(weights, before, strict=True):
            weight.copy_(rounded(original * scale, chunk, bits) / scale)
        tried.append((scale.numpy(), float(((outputs() - expected) ** 2).sum())))
    return tried


@pytest.mark.parametrize("family, settings, chunk, weights", [
    ("Llama", {}, 64, {"num_bits": 3, "strategy": "channel"}),
    ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}, 32, W4)], ids=["channels", "experts"])
@torch.no_grad()
def test_scales_are_the_textbook_s(family, settings, chunk, weights, samples, tmp_path):
    """The largest weight of a row lies between two codes, so that losses depend on the last bit of a scale."""
    model = tiny_models.save(tmp_path / "model", family, num_hidden_layers=1, **settings)
    groups = {"group_0": {"targets": [*cases.GATE_UP, "re:.*down_proj$"], "weights": weights}}
    path = recipe(tmp_path, AWQModifier=cases.mapping(cases.BETWEEN, cases.GATE_UP), QuantizationModifier={"config_groups": groups})
    output = program.oneshot(model, tmp_path / "out", "--recipe", path, "--dataset", samples)
    found = divisors(tiny_models.tensors(model), tiny_models.tensors(output), "model.layers.0.post_attention_layernorm")
    tried = textbook(model, tiny_models.random_samples(cases.LENGTHS), chunk, weights["num_bits"])
    losses = [loss for scale, loss in tried if numpy.allclose(scale, found, rtol=1e-3)]
    assert losses and losses[0] < 1.03 * min(loss for _, loss in tried) and losses[0] < 0.98 * tried[0][1]


@pytest.mark.parametrize("options, run", [
    (["--sequential-targets", "Linear"], program.oneshot), (["--batch-tokens", "70"], program.oneshot), ([], on_two_ranks)],
    ids=["cut at linears", "batches", "two ranks"])
def test_scales_do_not_depend_on_the_way(options, run, samples, tmp_path):
    before, after = case_run("llama-attention", samples, tmp_path, *options, run=run)
    for layer, scales in PEER["llama-attention"].items():
        assert numpy.allclose(divisors(before, after, layer), scales, rtol=1e-3), layer


@pytest.mark.parametrize("family, settings", [("Llama", {}), ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2,
                                                                             "moe_intermediate_size": 32})])
def test_the_model_stays_the_same(family, settings, samples, tmp_path):
    """Eight bits lose little, whatever the scales are."""
    model = tiny_models.save(tmp_path / "model", family, **settings)
    eight = {"ignore": cases.IGNORED, "config_groups": {"group_0": {"targets": ["Linear"], "weights": {**W4, "num_bits": 8}}}}
    output = program.oneshot(model, tmp_path / "out", "--recipe", recipe(tmp_path, AWQModifier={}, QuantizationModifier=eight),
                             "--dataset", samples)
    before, after = tiny_models.tensors(model), tiny_models.tensors(output)
    changed = [name for name in before if name.endswith("norm.weight") and not torch.equal(before[name], after[name])]
    assert len(changed) >= 3
    text = tiny_models.random_samples([40], seed=9)
    expected, found = tiny_models.logits(model, text)[0], tiny_models.logits(output, text)[0]
    assert numpy.abs(expected - found).mean() < 0.05 * numpy.abs(expected).mean()


def test_older_form_of_the_modifier(samples, tmp_path):
    """An AWQModifier with a scheme is one that only scales and a QuantizationModifier."""
    model = tiny_models.save(tmp_path / "model")
    outputs = []
    for name, modifiers in {"new": {"AWQModifier": {"duo_scaling": "both"}, "QuantizationModifier": ALL},
                            "old": {"AWQModifier": {"duo_scaling": "both", **ALL}}}.items():
        folder = tmp_path / name
        folder.mkdir()
        outputs.append(tiny_models.tensors(program.oneshot(model, folder / "out", "--recipe", recipe(folder, **modifiers),
                                                           "--dataset", samples)))
    assert outputs[0].keys() == outputs[1].keys()
    assert all(torch.equal(outputs[0][name], outputs[1][name]) for name in outputs[0])


def test_mappings_that_llm_compressor_writes(samples, tmp_path):
    """Its recipe.yaml names all usual mappings, also those that are impossible in the model (grouped heads)."""
    model = tiny_models.save(tmp_path / "model")
    mappings = [{"smooth_layer": smooth, "balance_layers": balance, "activation_hook_target": None} for smooth, balance in [
        (cases.BEFORE, cases.QKV), ("re:.*v_proj$", ["re:.*o_proj$"]), (cases.BETWEEN, cases.GATE_UP),
        ("re:.*up_proj$", ["re:.*down_proj$"])]]
    outputs = []
    for awq in ({}, {"mappings": mappings, "offload_device": None, "duo_scaling": True, "n_grid": 20}):
        folder = tmp_path / str(len(outputs))
        folder.mkdir()
        outputs.append(tiny_models.tensors(program.oneshot(
            model, folder / "out", "--recipe", recipe(folder, AWQModifier=awq, QuantizationModifier=ALL), "--dataset", samples)))
    assert all(torch.equal(outputs[0][name], outputs[1][name]) for name in outputs[0])


@pytest.mark.parametrize("modifiers, options, fragments", [
    ({"AWQModifier": {}}, [], ["AWQModifier", "it found no quantized layers to scale"]),
    ({"QuantizationModifier": ALL, "AWQModifier": {}}, [], ["put AWQModifier first"]),
    ({"AWQModifier": {"duo_scaling": "some"}, "QuantizationModifier": ALL}, [], ["duo_scaling", "both"]),
    ({"AWQModifier": {"n_grid": 1}, "QuantizationModifier": ALL}, [], ["n_grid is 1"]),
    ({"AWQModifier": {"grid": 1}, "QuantizationModifier": ALL}, [], ["grid", "n_grid"]),
    ({"AWQModifier": {"mappings": [{"smooth_layer": "re:.*nothing", "balance_layers": cases.QKV}]}, "QuantizationModifier": ALL}, [],
     ["mappings[0]", "smooth layer"]),
    ({"AWQModifier": {}, "QuantizationModifier": {"scheme": "FP8", "ignore": ["lm_head"]}}, [], ["duo_scaling to false"]),
    ({"AWQModifier": {}, "QuantizationModifier": ALL}, ["--pipeline", "basic"], ["AWQModifier", "sequential"]),
    ({"AWQModifier": {}, "QuantizationModifier": ALL}, ["--pipeline", "datafree"], ["datafree", "AWQ"]),
])
def test_what_is_refused(modifiers, options, fragments, samples, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    data = [] if "datafree" in options else ["--dataset", samples]
    program.fails("oneshot", model, "--output", tmp_path / "out", *data, "--recipe", recipe(tmp_path, **modifiers), *options,
                  fragments=fragments, code=2 if "datafree" in options else 1)


def test_mappings_without_effect_are_named(samples, tmp_path):
    """Values of grouped heads cannot be scaled; the run says so, and the result is that of rounding."""
    model = tiny_models.save(tmp_path / "model")
    mapping = {"smooth_layer": "re:.*v_proj", "balance_layers": ["re:.*o_proj"]}
    path = recipe(tmp_path, AWQModifier={"mappings": [mapping]}, QuantizationModifier=ALL)
    outcome = program.run("oneshot", model, "--output", tmp_path / "out", "--recipe", path, "--dataset", samples)
    assert "AWQModifier.mappings[0] has no effect" in outcome.errors
    mapping["smooth_layer"], mapping["balance_layers"] = "re:.*input_layernorm", ["re:.*gate_proj"]
    path = recipe(tmp_path, AWQModifier={"mappings": [mapping]}, QuantizationModifier=ALL)
    program.fails("oneshot", model, "--output", tmp_path / "other", "--recipe", path, "--dataset", samples,
                  fragments=["AWQModifier.mappings[0]", "do not read the smooth layer"])
