"""Mixtures of experts: logits against transformers, what they are calibrated on, and what readers get."""

import json
import shutil

import numpy
import pytest
import test_loading
import torch
import transformers
from safetensors.torch import load_file, save_file
from support import program, reference, tiny_models

LENGTHS = (11, 50, 3, 23, 1)
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}

CASES = {
    "qwen3_moe": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": True}),
    "qwen3_moe plain weights": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "norm_topk_prob": False}),
    "qwen3_moe dense layers": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "num_hidden_layers": 4, "decoder_sparse_step": 2,
                                            "mlp_only_layers": [3]}),
    "qwen3_moe window": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "use_sliding_window": True, "sliding_window": 7}),
    "qwen3_moe one expert": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "num_experts_per_tok": 1}),
    "qwen3_moe all experts": ("Qwen3Moe", {**EXPERTS, "head_dim": 16, "num_experts_per_tok": 8}),
    "qwen2_moe": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 80}),
    "qwen2_moe no bias": ("Qwen2Moe", {**EXPERTS, "shared_expert_intermediate_size": 80, "qkv_bias": False,
                                       "norm_topk_prob": True}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "mixtral window": ("Mixtral", {"num_local_experts": 4, "sliding_window": 7}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "olmoe normalized": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3, "norm_topk_prob": True}),
}


def save(folder, case, **more):
    family, settings = CASES[case]
    return tiny_models.save(folder, family, **{**settings, **more})


def differences(folder, tmp_path):
    samples = tiny_models.random_samples(LENGTHS)
    ours, theirs = program.logits(folder, samples, tmp_path), tiny_models.logits(folder, samples)
    assert min(wanted.std() for wanted in theirs) > 0.5
    return [numpy.abs(mine - wanted).max() for mine, wanted in zip(ours, theirs)]


@pytest.mark.parametrize("case", CASES)
def test_logits(case, tmp_path):
    assert max(differences(save(tmp_path / "model", case), tmp_path)) < 1e-4


def fuse_experts(folder):
    """Stores every layer's experts as the two tensors in which newer checkpoints hold them."""
    tensors = tiny_models.tensors(folder)
    config = json.loads((folder / "config.json").read_text())
    experts = config.get("num_experts", config.get("num_local_experts"))
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts."
        take = lambda expert, name: tensors.pop(f"{prefix}{expert}.{name}_proj.weight")
        parts = [(torch.cat([take(e, "gate"), take(e, "up")]), take(e, "down")) for e in range(experts)]
        tensors[prefix + "gate_up_proj"] = torch.stack([gate_up for gate_up, _ in parts])
        tensors[prefix + "down_proj"] = torch.stack([down for _, down in parts])
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def calibration(folder):
    return program.write_samples(folder / "samples.jsonl", tiny_models.random_samples([40, 64, 33, 64, 50, 64]))


def compress(model, output, *options):
    return program.oneshot(model, output, "--dataset", calibration(output.parent), "--group-size", "16", *options)


def test_experts_stored_as_one_tensor(tmp_path):
    """The same logits, and after compression the same tensors, expert by expert."""
    folder = save(tmp_path / "model", "qwen3_moe")
    plain = compress(folder, tmp_path / "plain")
    logits = program.logits(folder, tiny_models.random_samples(LENGTHS), tmp_path)
    fuse_experts(folder)
    again = program.logits(folder, tiny_models.random_samples(LENGTHS), tmp_path)
    assert all(numpy.array_equal(a, b) for a, b in zip(logits, again))
    fused = tiny_models.tensors(compress(folder, tmp_path / "fused"))
    separate = tiny_models.tensors(plain)
    assert fused.keys() == separate.keys()
    assert all(torch.equal(fused[name], separate[name]) for name in fused)


def test_fused_tensor_of_another_shape(tmp_path):
    folder = save(tmp_path / "model", "qwen3_moe")
    fuse_experts(folder)
    tiny_models.rewrite_config(folder, lambda config: config.update(moe_intermediate_size=32))
    program.fails("inspect", folder, fragments=["experts.gate_up_proj", "[8, 96, 64]", "[8, 64, 64]"])


@pytest.mark.parametrize("change, fragments", [
    ({"num_experts": 4}, ["mlp.gate.weight", "[8, 64]", "[4, 64]"]),
    ({"moe_intermediate_size": 32}, ["experts.0.gate_proj.weight", "[48, 64]", "[32, 64]"]),
    ({"num_experts": 16}, ["mlp.gate.weight", "[16, 64]"]),
    ({"num_experts_per_tok": 9}, ["num_experts_per_tok", "9 of 8"]),
    ({"num_experts": 0}, ["num_experts", "0"]),
], ids=["fewer", "narrower", "more", "too many chosen", "none"])
def test_config_that_contradicts_the_tensors(change, fragments, tmp_path):
    folder = save(tmp_path / "model", "qwen3_moe")
    tiny_models.rewrite_config(folder, lambda config: (config.pop("num_local_experts"), config.update(num_experts=8)))
    tiny_models.rewrite_config(folder, lambda config: config.update(change))
    program.fails("inspect", folder, fragments=fragments)


def summary_of(model, output, *options):
    summary = output.with_suffix(".json")
    compress(model, output, "--summary", summary, *options)
    return json.loads(summary.read_text())


def reports(summary):
    return {module["module"]: module for module in summary["modules"]}


def expert_modules(config_experts, *names, layers=2):
    return [f"model.layers.{layer}.mlp.experts.{e}.{name}" for layer in range(layers) for e in range(config_experts)
            for name in names]


def scheme_of(folder, module):
    groups = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"]
    assert len(groups) == 1, module
    return next(iter(groups.values()))


SCHEMES = ["W4A16", "FP8_DYNAMIC", "W4A16_ASYM", "W8A8", "W8A16"]
READABLE = ["W4A16", "FP8_DYNAMIC", "W8A16"]  # by transformers 5.17, which fuses experts as it loads them


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("experts") / "model", "Qwen3Moe", torch.bfloat16,
                            **CASES["qwen3_moe"][1])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_expert_is_stored_as_readers_expect(scheme, model, tmp_path):
    group_size = ["--group-size", "16"] if scheme.endswith(("16", "ASYM")) else []
    out = program.oneshot(model, tmp_path / "out", "--dataset", calibration(tmp_path), "--scheme", scheme, *group_size)
    tensors = tiny_models.tensors(out)
    original = tiny_models.tensors(model)
    stored = {}
    for module in expert_modules(8, "gate_proj", "up_proj", "down_proj"):
        stored[module] = reference.Stored(tensors, module, scheme_of(out, module))
        weight = original[f"{module}.weight"].float().numpy()
        error = numpy.linalg.norm(stored[module].weight() - weight) / numpy.linalg.norm(weight)
        assert 0 < error < (0.25 if scheme.startswith("W4") else 0.06), module
    # The router stays, and readers are told so: to them it is a Linear like any other.
    assert torch.equal(tensors["model.layers.1.mlp.gate.weight"], original["model.layers.1.mlp.gate.weight"])
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    assert ignored == ["model.layers.0.mlp.gate", "model.layers.1.mlp.gate", "lm_head"]
    if scheme not in READABLE:
        return
    opened = dequantized(out)
    for module, ours in stored.items():
        _, _, layer, _, _, expert, name = module.split(".")
        experts = opened.model.layers[int(layer)].mlp.experts
        gate, up = experts.gate_up_proj[int(expert)].chunk(2)
        theirs = {"gate_proj": gate, "up_proj": up, "down_proj": experts.down_proj[int(expert)]}[name]
        assert torch.equal(torch.from_numpy(ours.weight()).bfloat16(), theirs.detach().bfloat16()), module


def dequantized(folder):
    """transformers' model; it dequantizes experts to bf16 whatever it computes in."""
    opened = test_loading.load(folder, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    return opened.float()


def compare_logits(folder, tmp_path):
    """Close, as far as experts in bf16 and in fp32 are."""
    samples = tiny_models.random_samples(LENGTHS)
    opened = dequantized(folder)
    for ours, sample in zip(program.logits(folder, samples, tmp_path), samples):
        theirs = test_loading.logits_of(opened, sample)
        assert numpy.abs(ours - theirs).mean() < 5e-3 * theirs.std()


def test_all_experts_see_all_tokens(model, tmp_path):
    summary = summary_of(model, tmp_path / "out")
    seen = {report["tokens"] for report in summary["modules"]}
    assert seen == {sum([40, 64, 33, 64, 50, 64])}


def test_routed_tokens_and_those_that_fill_up(model, tmp_path):
    few = reports(summary_of(model, tmp_path / "few", "--no-moe-calibrate-all-experts", "--min-tokens-per-expert", "1"))
    more = reports(summary_of(model, tmp_path / "more", "--no-moe-calibrate-all-experts", "--min-tokens-per-expert", "100"))
    tokens = sum([40, 64, 33, 64, 50, 64])
    routed = 0
    for module in expert_modules(8, "gate_proj", "down_proj", layers=1):
        report, filled = few[module], more[module]
        assert report["tokens"] == report["routed_tokens"]  # every expert of this model gets some
        assert filled["routed_tokens"] == report["routed_tokens"]
        assert filled["tokens"] == max(100, filled["routed_tokens"])
        routed += report["routed_tokens"]
    assert routed == 2 * 2 * tokens  # two experts each, counted at two of their linears
    assert any(filled["tokens"] > filled["routed_tokens"] for filled in more.values() if "routed_tokens" in filled)


def test_an_expert_that_nobody_chooses(model, tmp_path):
    """It is rounded to nearest, or filled up with what comes closest to it; never zeroed."""
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for layer in range(2):  # of each of two pairs of experts one is above zero, the score of expert 3
        router = tensors[f"model.layers.{layer}.mlp.gate.weight"]
        router[1], router[3], router[5] = -router[0], 0, -router[4]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    out = tmp_path / "out"
    report = reports(summary_of(folder, out, "--no-moe-calibrate-all-experts", "--pipeline", "basic"))
    name = "model.layers.0.mlp.experts.3.gate_proj"
    assert report[name]["tokens"] == 0
    weight, result = tensors[f"{name}.weight"].float(), tiny_models.tensors(out)
    scale = result[f"{name}.weight_scale"].float()
    group = weight.shape[1] // scale.shape[1]
    groups = weight.view(*scale.shape, group)
    assert torch.equal(scale < 0, groups.amax(-1) > -groups.amin(-1))
    assert torch.allclose(scale.abs(), groups.abs().amax(-1) / 7.5, rtol=0.01), "the whole range of each group"
    codes = torch.from_numpy(reference.unpack(result[f"{name}.weight_packed"].numpy(), 4, weight.shape[1]))
    assert torch.equal(codes.float(), (weight / scale.repeat_interleave(group, 1)).round().clamp(-8, 7)), "each weight to the nearest"
    filled = reports(summary_of(folder, tmp_path / "filled", "--no-moe-calibrate-all-experts"))
    assert filled[name]["routed_tokens"] == 0 and filled[name]["tokens"] == 256


@pytest.mark.parametrize("options", [[], ["--no-moe-calibrate-all-experts"]], ids=["all", "routed"])
def test_chunks_of_experts_give_the_same(options, model, tmp_path):
    """Cut at every linear, or into pieces of several, the model is computed in other pieces, not otherwise."""
    wanted = tiny_models.tensors(compress(model, tmp_path / "layers", *options))
    for number, cut in enumerate((["Linear"], ["Linear", "--sequential-targets-per-subgraph", "6"],
                                  ["re:.*experts\\.\\d+$"], ["Qwen3MoeSparseMoeBlock"])):
        out = compress(model, tmp_path / f"cut{number}", "--sequential-targets", *cut, *options)
        found = tiny_models.tensors(out)
        assert found.keys() == wanted.keys()
        differing = [name for name in wanted if not torch.equal(found[name], wanted[name])]
        assert differing == [], cut


def test_without_data(model, tmp_path):
    out = compress(model, tmp_path / "out", "--algorithm", "rtn")
    tensors = tiny_models.tensors(out)
    assert all(f"{module}.weight_packed" in tensors for module in expert_modules(8, "gate_proj", "up_proj", "down_proj"))


RECIPE = "m_stage: {m_modifiers: {GPTQModifier: %s}}"


def refused(model, tmp_path, recipe, *fragments):
    (tmp_path / "recipe.yaml").write_text(recipe)
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", tmp_path / "recipe.yaml",
                  "--dataset", calibration(tmp_path), fragments=fragments)
    assert not (tmp_path / "out").exists()


def test_experts_of_different_schemes_are_refused(model, tmp_path):
    group = "{targets: ['%s'], weights: {num_bits: %d, type: int, symmetric: true, strategy: channel}}"
    refused(model, tmp_path, RECIPE % "{ignore: [lm_head], config_groups: {a: %s, b: %s}}" % (
        group % (r"re:.*experts\.\d+\.(gate|up)_proj", 4), group % (r"re:.*experts\.\d+\.down_proj", 8)),
        "experts.0.down_proj", "experts.0.gate_proj", "compressed differently")
    refused(model, tmp_path, RECIPE % "{targets: [Linear], scheme: W8A8, ignore: [lm_head, 're:.*experts.3.*']}",
            "experts.3.down_proj", "experts.0.down_proj", "ignore all of them")


def test_the_router_is_compressed_when_it_is_named(model, tmp_path):
    """By its full name; a pattern that also matches it leaves it, because engines cannot load compressed routers."""
    out = compress(model, tmp_path / "out", "--algorithm", "rtn", "--targets", "Linear", "model.layers.0.mlp.gate", "re:.*mlp\\.gate$")
    tensors = tiny_models.tensors(out)
    assert "model.layers.0.mlp.gate.weight_packed" in tensors and "model.layers.1.mlp.gate.weight" in tensors


def test_a_shared_expert(tmp_path):
    """Its linears are a mixture's like the others; its gate, one feature wide, stays."""
    folder = tiny_models.save(tmp_path / "model", "Qwen2Moe", torch.bfloat16, **CASES["qwen2_moe"][1])
    out = compress(folder, tmp_path / "out")
    tensors = tiny_models.tensors(out)
    for name in ("shared_expert.gate_proj.weight_packed", "shared_expert.down_proj.weight_packed",
                 "shared_expert_gate.weight", "experts.7.up_proj.weight_packed"):
        assert f"model.layers.1.mlp.{name}" in tensors
    compare_logits(out, tmp_path)


@pytest.mark.parametrize("case", ["mixtral", "olmoe"])
def test_transformers_opens_the_others_too(case, tmp_path):
    folder = tiny_models.save(tmp_path / "model", CASES[case][0], torch.bfloat16, **CASES[case][1])
    out = compress(folder, tmp_path / "out")
    compare_logits(out, tmp_path)
