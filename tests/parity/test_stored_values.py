"""Scales that belong to values: NVFP4's inputs, keys, values and queries. LLM Compressor's on the same tokens."""

import json
from pathlib import Path

import numpy
import peer_scales_cases as cases
import pytest
import torch
from support import program, tiny_models
from support.selection import nightly_but
from test_static_inputs import compress_by, samples  # noqa: F401
from transformers.models.llama import modeling_llama

PEER = json.loads(Path(__file__).with_name("peer_scales.json").read_text())
SCALES = (".k_scale", ".v_scale", ".k_zero_point", ".v_zero_point", ".input_global_scale")
ALL = {**cases.GLOBAL, **cases.CACHED}
FP8_MAXIMUM = 448
FIRST = [f"layers.0.self_attn.{name}_proj.input" for name in "qkv"]  # what they read is computed alike in bf16


def compress(name, samples, folder, *options, **more):
    dtype = torch.bfloat16 if name.endswith("bf16") else torch.float32
    return compress_by(ALL[name], samples, folder, *options, **{"dtype": dtype, **more})


def is_of_experts(name):
    return ".experts." in name and name.endswith("down_proj.input_global_scale")


def wanted_scales(name):
    """A layer's experts have one scale for their down projections: that of the widest input, the smallest divisor."""
    wanted = {key: value for key, value in PEER["static"][name].items() if key.endswith(SCALES)}
    for key in filter(is_of_experts, list(wanted)):
        layer = key.split(".experts.")[0]
        wanted[key] = [min(wanted[other][0] for other in wanted if is_of_experts(other) and other.startswith(layer + "."))]
    return wanted


def check_scales(name, tensors, symmetric=True):
    wanted = wanted_scales(name)
    stored = {key for key in wanted if not (symmetric and key.endswith("zero_point"))}
    assert {key for key in tensors if key.endswith(SCALES)} == stored
    for key in stored:
        # In bf16, sums in another order may round the greatest element otherwise, by a step or two; not before the first sums.
        rounds = name.endswith("bf16") and not any(part in key for part in FIRST)
        assert numpy.allclose(tensors[key].double().flatten().numpy(), wanted[key], rtol=2e-2 if rounds else 1e-3, atol=0), key


def without_observer(config):
    """The default observer of weights differs."""
    for group in config["config_groups"].values():
        if group["weights"]:
            group["weights"].pop("observer")
    return config


def groups_of(config):
    return sorted((json.dumps(group, sort_keys=True) for group in config.pop("config_groups").values()))


@pytest.mark.parametrize("name", ALL)
def test_scales_and_configuration_equal_the_peer_s(name, samples, tmp_path):
    _, output = compress(name, samples, tmp_path)
    check_scales(name, tiny_models.tensors(output), symmetric=name != "kv-integers")
    ours = without_observer(json.loads((output / "config.json").read_text())["quantization_config"])
    theirs = without_observer(json.loads(json.dumps(PEER["configs"][name])))
    if name == "attention-heads":  # vLLM refuses the whole checkpoint if a pattern names all attentions
        group, = (group for group in theirs["config_groups"].values() if group["weights"] is None)
        assert group.pop("targets") == ["re:.*self_attn$"]
        group["targets"] = ["LlamaAttention"]
    assert groups_of(ours) == groups_of(theirs)  # the order follows from what readers match first
    assert sorted(ours.pop("ignore")) == sorted(theirs.pop("ignore"))
    assert ours == theirs


@pytest.mark.parametrize("options", [["--pipeline", "basic"], ["--sequential-targets", "Linear"],
                                     ["--sequential-offload-device", "disk", "--batch-tokens", "70"]],
                         ids=["basic", "cut at linears", "disk"])
@pytest.mark.parametrize("name", nightly_but(["nvfp4", "kv", "attention-heads"], "kv"))
def test_scales_do_not_depend_on_the_way(name, options, samples, tmp_path):
    check_scales(name, tiny_models.tensors(compress(name, samples, tmp_path, *options)[1]))


@pytest.mark.parametrize("name", ["kv-range", "kv-heads"])
def test_scales_on_two_ranks(name, samples, tmp_path):
    check_scales(name, tiny_models.tensors(compress(name, samples, tmp_path, ranks=2)[1]))


@pytest.mark.parametrize(("name", "shape"), [("kv", (1,)), ("kv-heads", (2, 1, 1))])
def test_names_dtypes_and_shapes(name, shape, samples, tmp_path):
    tensors = tiny_models.tensors(compress(name, samples, tmp_path, dtype=torch.bfloat16)[1])
    found = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in tensors.items() if key.endswith(SCALES)}
    assert found == {f"model.layers.{layer}.self_attn.{kind}_scale": (torch.bfloat16, shape)
                     for layer in range(2) for kind in "kv"}


def ranges(model, samples):
    """The largest magnitude of what each attention of `model` gets as queries, keys and values."""
    largest = {}

    def look(module, query, key, value, mask, **options):
        for kind, states in (("q", query), ("k", key), ("v", value)):
            name = (module.layer_idx, kind)
            largest[name] = max(largest.get(name, 0), states.abs().max().item())
        return transformers_eager(module, query, key, value, mask, **options)

    transformers_eager = modeling_llama.eager_attention_forward
    modeling_llama.eager_attention_forward = look
    try:
        with torch.no_grad():
            for sample in samples:
                model(torch.tensor([sample]))
    finally:
        modeling_llama.eager_attention_forward = transformers_eager
    return largest


def test_with_gptq_in_one_pass(samples, tmp_path):
    """The range of keys and values in the compressed model."""
    arguments = {"scheme": "FP8_DYNAMIC", "kv_cache_scheme": cases.cache(observer="static_minmax")}
    model, output = compress_by(("Llama", {}, arguments), samples, tmp_path, modifier="GPTQModifier")
    tensors, plain = tiny_models.tensors(output), tiny_models.load(model)
    with torch.no_grad():
        for key, codes in tensors.items():
            if codes.dtype == torch.float8_e4m3fn:
                module = plain.get_submodule(key.removesuffix(".weight"))
                module.weight.copy_(codes.float() * tensors[key + "_scale"].float())
    largest = ranges(plain, tiny_models.random_samples(cases.LENGTHS))
    assert len(largest) == 6
    for (layer, kind), value in largest.items():
        if kind == "q":
            continue
        found = tensors[f"model.layers.{layer}.self_attn.{kind}_scale"].item()
        assert found == pytest.approx(value / FP8_MAXIMUM, rel=1e-3), (layer, kind)


def test_scales_of_queries(samples, tmp_path):
    model, output = compress("attention", samples, tmp_path)
    tensors = tiny_models.tensors(output)
    largest = ranges(tiny_models.load(model), tiny_models.random_samples(cases.LENGTHS))
    for (layer, kind), value in largest.items():
        found = tensors[f"model.layers.{layer}.self_attn.{kind}_scale"].item()
        assert found == pytest.approx(value / FP8_MAXIMUM, rel=1e-3), (layer, kind)


@pytest.mark.parametrize("quality", ["balanced", "best"])
def test_nvfp4_with_gptq(quality, samples, tmp_path):
    """The divisor of what linears read in the compressed model is in every file, and the same where engines fuse."""
    _, output = compress_by(("Llama", {}, {"scheme": "NVFP4"}), samples, tmp_path, "--quality", quality,
                            modifier="GPTQModifier")
    tensors = tiny_models.tensors(output)
    scales = {key.removesuffix(".input_global_scale"): tensor.item() for key, tensor in tensors.items()
              if key.endswith(".input_global_scale")}
    assert len(scales) == 14
    for layer in ("model.layers.0.", "model.layers.1."):
        assert len({scales[layer + f"self_attn.{name}_proj"] for name in "qkv"}) == 1
        assert scales[layer + "mlp.gate_proj"] == scales[layer + "mlp.up_proj"]
    first = wanted_scales("nvfp4")["model.layers.0.self_attn.q_proj.input_global_scale"][0]
    assert scales["model.layers.0.self_attn.q_proj"] == pytest.approx(first, rel=1e-3)  # before anything is compressed


def test_an_expert_without_tokens_has_the_layer_s_scales(samples, tmp_path):
    """With routed tokens only, an expert may get none."""
    arguments = {"scheme": "NVFP4"}
    settings = {**cases.EXPERTS, "num_experts": 32, "num_experts_per_tok": 1}
    data = program.write_samples(tmp_path / "few.jsonl", tiny_models.random_samples([6]))
    _, output = compress_by(("Qwen3Moe", settings, arguments), data, tmp_path, "--no-moe-calibrate-all-experts",
                            "--min-tokens-per-expert", "1")
    tensors = tiny_models.tensors(output)
    for layer in range(2):
        for names in (("gate_proj", "up_proj"), ("down_proj",)):
            found = {tensors[f"model.layers.{layer}.mlp.experts.{expert}.{name}.input_global_scale"].item()
                     for expert in range(32) for name in names}
            assert len(found) == 1 and 0 < found.pop() < 1e6


def test_both_projections_down_of_latent_attention_share_a_scale(samples, tmp_path):
    _, output = compress_by(("DeepseekV3", {}, {"scheme": "NVFP4"}), samples, tmp_path)
    tensors = tiny_models.tensors(output)
    for layer in ("model.layers.0.", "model.layers.1."):
        assert torch.equal(tensors[layer + "self_attn.q_a_proj.input_global_scale"],
                           tensors[layer + "self_attn.kv_a_proj_with_mqa.input_global_scale"])


def test_served_cache(samples, tmp_path):
    """--quantize-activations rounds keys and values as transformers does with compressed-tensors' cache."""
    arguments = {"config_groups": {"group_0": {"targets": ["LlamaAttention"], "input_activations": cases.cache()}}}
    model, output = compress_by(("Llama", {}, arguments), samples, tmp_path)
    tensors = tiny_models.tensors(output)
    for key in [key for key in tensors if key.endswith("_scale")]:
        tensors[key] = tensors[key] * 16  # coarse enough to show
    tiny_models.rewrite_tensors(output, tensors)
    text = tiny_models.random_samples([40, 23], seed=9)
    served = program.logits(output, text, tmp_path, options=["--quantize-activations"])
    plain = program.logits(output, text, tmp_path)
    for ours, unrounded, sample in zip(served, plain, text, strict=True):
        theirs = rounded_logits(model, tensors, sample)
        assert numpy.abs(unrounded - theirs).mean() > 0.01 * theirs.std()
        assert numpy.abs(ours - theirs).mean() < 0.02 * numpy.abs(unrounded - theirs).mean() + 1e-5


def rounded_logits(folder, tensors, sample):
    """transformers' logits with queries, keys and values rounded before each attention."""
    model = tiny_models.load(folder)
    eager = modeling_llama.eager_attention_forward

    def rounding(module, query, key, value, mask, **options):
        def rounded(states, kind):
            scale = tensors[f"model.layers.{module.layer_idx}.self_attn.{kind}_scale"].float()
            return (states / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
        return eager(module, rounded(query, "q"), rounded(key, "k"), rounded(value, "v"), mask, **options)

    modeling_llama.eager_attention_forward = rounding
    try:
        with torch.no_grad():
            return model(torch.tensor([sample])).logits[0].float().numpy()
    finally:
        modeling_llama.eager_attention_forward = eager


@pytest.mark.parametrize(("family", "arguments", "fragments"), [
    ("DeepseekV3", {"kv_cache_scheme": cases.cache()}, ["model.layers.0.self_attn", "latent attention (MLA)"]),
    ("Llama", {"kv_cache_scheme": cases.cache(dynamic=True)}, ["kv_cache_scheme", "dynamic"]),
    ("Llama", {"kv_cache_scheme": cases.cache(strategy="group", group_size=16)}, ["kv_cache_scheme", "strategy"]),
    ("Llama", {"kv_cache_scheme": cases.cache(num_bits=4)}, ["kv_cache_scheme", "4-bit"]),
    ("Llama", {"kv_cache_scheme": cases.cache(observer="hessian")}, ["kv_cache_scheme", "hessian"]),
    ("Llama", {"kv_cache_scheme": 3}, ["kv_cache_scheme"]),
    ("Llama", {"config_groups": {"group_0": {"targets": ["Linear"], "input_activations": cases.cache()}}},
     ["no weights", "q_proj"]),
    ("Llama", {"scheme": "NVFP4", "input_observer": "mse"}, ["mse", "global scale"]),
    ("Llama", {"config_groups": {"group_0": {"targets": ["OtherAttention"], "input_activations": cases.cache()}}},
     ["match no module"]),
])
def test_what_is_refused(family, arguments, fragments, samples, tmp_path):
    model = tiny_models.save(tmp_path / "model", family)
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": {"QuantizationModifier": {"ignore": ["lm_head"], **arguments}}}}))
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", path, "--dataset", samples, fragments=fragments)


@pytest.mark.parametrize("scheme", ["FP8", "NVFP4"])
def test_inputs_without_a_range(scheme, samples, tmp_path):
    """Zeros have a positive scale; what is not finite is named, and nothing is written."""
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16)
    tensors, norm = tiny_models.tensors(model), "model.layers.1.post_attention_layernorm.weight"
    path = tmp_path / "recipe.json"
    arguments = {"scheme": scheme, "ignore": ["lm_head"], "kv_cache_scheme": cases.cache(observer="static_minmax")}
    path.write_text(json.dumps({"quant_stage": {"quant_modifiers": {"QuantizationModifier": arguments}}}))
    tiny_models.rewrite_tensors(model, {**tensors, norm: torch.zeros_like(tensors[norm])})
    written = tiny_models.tensors(program.oneshot(model, tmp_path / "zeros", "--recipe", path, "--dataset", samples))
    scales = [tensor for key, tensor in written.items() if key.endswith((".input_scale", *SCALES))]
    assert len(scales) == 2 * (7 + 2) and all(torch.isfinite(scale).all() and (scale > 0).all() for scale in scales)
    tiny_models.rewrite_tensors(model, {**tensors, norm: torch.full_like(tensors[norm], 3e38)})
    program.fails("oneshot", model, "--output", tmp_path / "infinite", "--recipe", path, "--dataset", samples,
                  fragments=["model.layers.1.mlp.gate_proj", "NaN or infinite"])
    assert not (tmp_path / "infinite").exists()


def test_damaged_scales_are_named(samples, tmp_path):
    _, output = compress_by(("Llama", {}, {"kv_cache_scheme": cases.cache()}), samples, tmp_path)
    tensors, name = tiny_models.tensors(output), "model.layers.1.self_attn.k_scale"
    for scale, fragment in ((torch.tensor([0.0]), "positive"), (torch.tensor([float("nan")]), "finite"),
                            (torch.ones(3), "one finite"), (None, "missing")):
        changed = {key: tensor for key, tensor in tensors.items() if key != name}
        tiny_models.rewrite_tensors(output, changed if scale is None else {**changed, name: scale})
        program.fails("eval", output, "--dataset", samples, "--quantize-activations", fragments=[name, fragment])
