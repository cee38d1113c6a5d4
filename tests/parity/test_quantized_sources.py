"""Checkpoints that are stored quantized: their values against libraries', and what runs make of them."""

import json
import shutil

import pytest
import torch
import transformers
from safetensors.torch import load_file
from support import compressed_cases, program, quantized_sources, ranked_runs, tiny_models
from support.quantized_sources import FORMATS, QuantizedSource, equal_bytes
from support.selection import nightly_but
from support.watched_runs import killed

SIZES = {"hidden_size": 128, "intermediate_size": 160, "num_hidden_layers": 2}
ROUNDING = ["--algorithm", "rtn", "--group-size", "16"]  # no source has it
SOME = ["--targets", "re:.*o_proj"]
IN_FOUR_BITS = ("gptq", "auto-round", "awq", "modelopt nvfp4", "fp4")


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Makes a checkpoint when it is first asked for; tests must not change it."""
    made = {}

    def make(name):
        if name not in made:
            made[name] = QuantizedSource(tmp_path_factory.mktemp("source"), name, **SIZES)
        return made[name]

    return make


@pytest.fixture(scope="module")
def samples(tmp_path_factory):
    rows = tiny_models.random_samples([30, 64, 17, 64, 40, 64, 55, 21], seed=7)
    return program.write_samples(tmp_path_factory.mktemp("data") / "samples.jsonl", rows)


def oneshot(model, out, *options):
    """The outcome and the summary."""
    summary = out.with_name(out.name + "-summary.json")
    outcome = program.run("oneshot", model, "--output", out, "--summary", summary, "--log-level", "info", *options)
    return outcome, json.loads(summary.read_text())


def same_tensors(ours, theirs, names=None):
    ours, theirs = tiny_models.tensors(ours), tiny_models.tensors(theirs)
    assert names is not None or ours.keys() == theirs.keys()
    different = [name for name in names or ours if not equal_bytes(ours[name], theirs[name])]
    assert different == []


@pytest.mark.parametrize("name", FORMATS)
def test_values(name, sources, tmp_path):
    """Weights that stay uncompressed are written as numbers when a dtype is asked for."""
    source = sources(name)
    dtype = str(source.dtype).removeprefix("torch.")
    outcome, summary = oneshot(source.folder, tmp_path / "out", *ROUNDING, *SOME, "--dtype", dtype)
    kept = [weight for weight in source.weights if "o_proj" not in weight]
    same_tensors(tmp_path / "out", source.values, kept)
    plain = set(tiny_models.tensors(source.values)) - set(source.weights)
    same_tensors(tmp_path / "out", source.values, plain)
    config = quantized_sources.read_json(tmp_path / "out" / "config.json")["quantization_config"]
    assert len(config["config_groups"]) == 1 and f"{len(kept)} weights that stay uncompressed" in outcome.errors
    tensors = summary["source_tensors"]
    assert tensors == {"read": len(tiny_models.tensors(source.folder)), "copied": 0, "copied_names": [], "dropped": []}


@pytest.mark.parametrize("name", FORMATS)
def test_runs_give_the_same_bytes(name, sources, tmp_path):
    """As from the checkpoint that holds the dequantized values."""
    source = sources(name)
    outcome, summary = oneshot(source.folder, tmp_path / "out", *ROUNDING)
    oneshot(source.values, tmp_path / "expected", *ROUNDING)
    same_tensors(tmp_path / "out", tmp_path / "expected")
    for file in ("config.json", "recipe.yaml"):
        assert (tmp_path / "out" / file).read_text() == (tmp_path / "expected" / file).read_text()
    assert summary["source_quantization"] in outcome.errors
    requantized = name.startswith(IN_FOUR_BITS)
    assert ("quantized again" in outcome.errors) == ("requantized" in summary) == requantized
    if requantized:
        errors = [module["weight_error"] for module in summary["modules"] if not module.get("source_scheme", "8-bit").startswith("8-bit")]
        assert summary["requantized"]["greatest_error"] == max(errors) > 0
        assert summary["requantized"]["mean_error"] == pytest.approx(sum(errors) / len(errors))


@pytest.mark.parametrize("options", nightly_but({
    "gptq": [], "best": ["--quality", "best"], "basic": ["--pipeline", "basic"],
    "in linear targets": ["--sequential-targets", "Linear"],
}.items(), ("gptq", []), ("best", ["--quality", "best"])), ids=lambda item: item[0])
def test_calibrated_runs_give_the_same_bytes(options, sources, samples, tmp_path):
    source = sources("fp8 block")
    arguments = ["--group-size", "32", "--dataset", samples, *options[1]]
    oneshot(source.folder, tmp_path / "out", *arguments)
    oneshot(source.values, tmp_path / "expected", *arguments)
    same_tensors(tmp_path / "out", tmp_path / "expected")


def test_ranks_give_the_same_bytes(sources, samples, tmp_path):
    source = sources("fp8 block")
    arguments = ["--group-size", "32", "--dataset", samples, *SOME]
    out, expected = (ranked_runs.run(2, folder, tmp_path / f"out{place}", *arguments)
                     for place, folder in enumerate((source.folder, source.values)))
    compressed = [name for name in tiny_models.tensors(expected) if "o_proj" in name]
    kept = [weight for weight in source.weights if "o_proj" not in weight]
    assert compressed and kept
    same_tensors(out, expected, compressed)
    same_tensors(out, source.folder, kept)


KEPT = [name for name in FORMATS if name != "gptq in activation order"]


@pytest.mark.parametrize("name", KEPT)
def test_codes_are_kept(name, sources, tmp_path):
    """What stays uncompressed keeps its codes, and transformers reads the mixture. The head of the output's config says so."""
    source = sources(name)
    oneshot(source.folder, tmp_path / "out", *ROUNDING, *SOME)
    oneshot(source.values, tmp_path / "expected", *ROUNDING, *SOME)
    tensors = tiny_models.tensors(tmp_path / "out")
    kept = [weight.removesuffix(".weight") for weight in source.weights if "o_proj" not in weight]
    assert all(tensors.get(f"{module}.weight_packed", tensors.get(f"{module}.weight")).element_size() in (1, 4)
               for module in kept)
    config = quantized_sources.read_json(tmp_path / "out" / "config.json")["quantization_config"]
    forms = 3 if FORMATS[name][0] is quantized_sources.gptq_of_three_bits else 1
    assert config["quant_method"] == "compressed-tensors" and len(config["config_groups"]) == 1 + forms
    values = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=source.dtype, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    expected = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "expected", dtype=source.dtype, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    read, wanted = values.state_dict(), expected.state_dict()
    for weight in source.weights:
        # transformers rounds scales to the model's dtype, so that bf16 is off by up to 1 / 256.
        assert (read[weight].float() - wanted[weight].float()).norm() <= 5e-3 * wanted[weight].float().norm(), weight
    # The program reads its own mixture.
    first = program.logits(tmp_path / "out", tiny_models.random_samples([20]), tmp_path)[0]
    second = program.logits(tmp_path / "expected", tiny_models.random_samples([20]), tmp_path)[0]
    assert abs(first - second).max() < 0.05 * second.std()


@pytest.mark.parametrize("name", ["fp8 tensor", "mxfp8", "modelopt nvfp4"])
def test_evaluation_rounds_activations(name, sources, tmp_path):
    """As of the checkpoint that a run makes of it, where only the last linear differs; scales of inputs have other names there."""
    source = sources(name)
    oneshot(source.folder, tmp_path / "out", *ROUNDING, "--scheme", "W8A16", "--targets", "re:.*layers.1.mlp.down_proj")
    text = tiny_models.random_samples([20])
    plain, served = (program.logits(source.folder, text, tmp_path, options=options)[0]
                     for options in ([], ["--quantize-activations"]))
    written = program.logits(tmp_path / "out", text, tmp_path, options=["--quantize-activations"])[0]
    change = abs(served - plain).mean()
    assert change > 0 and abs(written - served).mean() < change / 2


def test_scales_of_zero_in_modelopt(tmp_path):
    """Their groups are zeros; compressed-tensors has no such scales."""
    source = QuantizedSource(tmp_path, "modelopt nvfp4", **SIZES)
    module = "model.layers.1.mlp.up_proj"
    source.change(f"{module}.weight_scale", lambda scale: torch.cat([torch.zeros(8, scale.shape[1]), scale[8:].float()]).to(
        scale.dtype))
    oneshot(source.folder, tmp_path / "out", *ROUNDING, *SOME)
    read, values = dequantized(tmp_path / "out")[f"{module}.weight"], tiny_models.tensors(source.values)[f"{module}.weight"]
    assert (read[:8] == 0).all() and (read[8:].float() - values[8:].float()).norm() <= 5e-3 * values[8:].float().norm()
    assert tiny_models.tensors(tmp_path / "out")[f"{module}.weight_scale"].float().min() > 0
    text = tiny_models.random_samples([20])
    program.logits(tmp_path / "out", text, tmp_path)


def test_codes_of_rotated_weights(sources, tmp_path):
    """Rotations leave no codes: what stays uncompressed is written as values, and what is compressed is quantized again. The run says both."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"s_stage": {"s_modifiers": {"SpinQuantModifier": {"rotations": ["R1"]}, "QuantizationModifier": {
        "scheme": "W4A16", "targets": ["re:.*o_proj"]}}}}))
    outcome, summary = oneshot(sources("gptq").folder, tmp_path / "out", "--recipe", recipe)
    assert "weights that stay uncompressed are written as float16, not as they are stored" in outcome.errors
    assert f"quantized again, which adds to the error: {summary['requantized']['modules']} modules" in outcome.errors
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["config_groups"].keys() == {"group_0"}


def test_codes_in_an_order_are_not_kept(sources, tmp_path):
    source = sources("gptq in activation order")
    outcome, _ = oneshot(source.folder, tmp_path / "out", *ROUNDING, *SOME)
    assert "weights that stay uncompressed are written as float16" in outcome.errors
    same_tensors(tmp_path / "out", source.values, [weight for weight in source.weights if "o_proj" not in weight])


@pytest.mark.parametrize("name", nightly_but(
    [case for case in compressed_cases.CASES if case.startswith("rtn ") or case in ("mixed precision", "fp8 embedding and linears")],
    "rtn W4A16", "rtn W4A16_ASYM", "rtn FP8_DYNAMIC", "rtn NVFP4A16", "rtn MXFP4", "rtn MXFP8", "mixed precision"))
def test_compressed_tensors(name, tmp_path):
    """Outputs of the program are sources, with the values that transformers reads."""
    compressed = compressed_cases.Compressed(name, tmp_path / "case")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        compressed.folder, dtype=torch.bfloat16, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    read = model.state_dict()
    scheme = "W8A16" if name == "rtn W8A8" else "W8A8"
    recipe = ["--algorithm", "rtn", "--scheme", scheme, "--targets", "re:.*layers.1.*o_proj"]
    oneshot(compressed.folder, tmp_path / "numbers", *recipe, "--dtype", "bfloat16")
    tensors = tiny_models.tensors(tmp_path / "numbers")
    for module in compressed.scheme_of:
        if module.endswith(("layers.1.self_attn.o_proj", "embed_tokens")):
            continue
        assert equal_bytes(tensors[f"{module}.weight"], read[f"{module}.weight"].bfloat16()), module
    oneshot(compressed.folder, tmp_path / "codes", *recipe)
    kept = [tensor for tensor in compressed.tensors if "layers.1.self_attn.o_proj" not in tensor]
    same_tensors(tmp_path / "codes", compressed.folder, kept)
    groups = quantized_sources.read_json(tmp_path / "codes" / "config.json")["quantization_config"]["config_groups"]
    assert len(groups) == len(compressed.schemes) + 1


@pytest.mark.parametrize("name, at_the_top", [("rtn W4A16", "pack-quantized"), ("rtn W8A8", "int-quantized"), ("rtn FP8_DYNAMIC", "naive-quantized")])
def test_early_versions_of_compressed_tensors(name, at_the_top, tmp_path):
    """Published files of 2024: a status "frozen", a format only at the top, a "dense" sparsity, and compression_config as the name of all that."""
    compressed = compressed_cases.Compressed(name, tmp_path / "case")
    recipe = [*ROUNDING, "--targets", "lm_head", "--ignore", "none", "--dtype", "bfloat16"]
    oneshot(compressed.folder, tmp_path / "today", *recipe)

    def as_then(config):
        found = config.pop("quantization_config")
        for group in found["config_groups"].values():
            del group["format"]
            for part, observer in (("weights", "minmax"), ("input_activations", "memoryless")):
                if group[part] is not None:
                    known = ("dynamic", "group_size", "num_bits", "strategy", "symmetric", "type")
                    group[part] = {"actorder": None, "block_structure": None, "observer": observer, "observer_kwargs": {},
                                   **{key: group[part][key] for key in known}}
        config["compression_config"] = {
            "config_groups": found["config_groups"], "format": at_the_top, "global_compression_ratio": 1.24, "ignore": found["ignore"],
            "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "frozen",
            "sparsity_config": {"format": "dense", "global_sparsity": 0.14, "ignore": [], "registry_requires_subclass": False,
                                "sparsity_structure": "unstructured"}}

    tiny_models.rewrite_config(compressed.folder, as_then)
    oneshot(compressed.folder, tmp_path / "then", *recipe)
    same_tensors(tmp_path / "then", tmp_path / "today")


@pytest.mark.parametrize("order", ["group", "dynamic"])
def test_columns_in_an_order_of_their_own(order, tmp_path):
    """weight_g_idx names the group of each column, and the config says so in a word that recipes no longer have."""
    compressed = compressed_cases.Compressed("rtn W4A16", tmp_path / "case")
    tensors, values, expected = tiny_models.tensors(compressed.folder), dequantized(compressed.folder), {}
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith("weight_scale")]:
        module = name.removesuffix(".weight_scale")
        rows, columns = tensors[f"{module}.weight_shape"].tolist()
        place = torch.randperm(columns, generator=generator)  # where each column goes
        codes = (tensors[f"{module}.weight_packed"][..., None] >> (4 * torch.arange(8)) & 15).reshape(rows, -1)[:, :columns]
        moved, group = torch.empty_like(codes), torch.empty(columns, dtype=torch.int32)
        moved[:, place], group[place] = codes, torch.arange(columns, dtype=torch.int32) // (columns // tensors[name].shape[1])
        words = (moved.reshape(rows, -1, 8).to(torch.int64) << (4 * torch.arange(8))).sum(-1)
        tensors[f"{module}.weight_packed"] = torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)
        tensors[f"{module}.weight_g_idx"] = group
        expected[f"{module}.weight"] = torch.empty_like(values[f"{module}.weight"])
        expected[f"{module}.weight"][:, place] = values[f"{module}.weight"]
    tiny_models.rewrite_tensors(compressed.folder, tensors)
    tiny_models.rewrite_config(compressed.folder, lambda config: config["quantization_config"]["config_groups"]["group_0"]["weights"].update(
        actorder=order))
    oneshot(compressed.folder, tmp_path / "out", *ROUNDING, "--targets", "lm_head", "--ignore", "none", "--dtype", "bfloat16")
    written = tiny_models.tensors(tmp_path / "out")
    for name, value in expected.items():
        assert equal_bytes(written[name], value.to(written[name].dtype)), name


def test_zero_points_that_say_nothing(tmp_path):
    """Symmetric weights with zero points of zero are read as without them; with others they are refused."""
    compressed = compressed_cases.Compressed("rtn W4A16", tmp_path / "case")
    tensors = tiny_models.tensors(compressed.folder)
    options = [*ROUNDING, "--targets", "lm_head", "--ignore", "none"]
    oneshot(compressed.folder, tmp_path / "plain", *options)
    scales = {name: value for name, value in tensors.items() if name.endswith("weight_scale")}
    points = {name.replace("weight_scale", "weight_zero_point"): torch.zeros_like(value, dtype=torch.int8) for name, value in scales.items()}
    tiny_models.rewrite_tensors(compressed.folder, tensors | points)
    oneshot(compressed.folder, tmp_path / "zeros", *options)
    same_tensors(tmp_path / "zeros", tmp_path / "plain")
    program.run("verify", tmp_path / "zeros")
    tiny_models.rewrite_tensors(compressed.folder, tensors | {name: value + 1 for name, value in points.items()})
    program.fails("eval", compressed.folder, "--dataset", program.write_token_file(tmp_path / "t.safetensors", tiny_models.random_samples([9])),
                  fragments=["weight_zero_point", "symmetric"])


@pytest.mark.parametrize("value", [0, float("nan")])
def test_damaged_codes_are_not_kept(value, tmp_path):
    compressed = compressed_cases.Compressed("rtn FP8_DYNAMIC", tmp_path / "case")
    tensors = tiny_models.tensors(compressed.folder)
    name = next(name for name in tensors if name.endswith("o_proj.weight_scale"))
    tiny_models.rewrite_tensors(compressed.folder, tensors | {name: with_first(value)(tensors[name])})
    program.fails("oneshot", compressed.folder, "--output", tmp_path / "out", "--algorithm", "rtn", "--scheme", "W8A8", "--targets", "re:.*up_proj",
                  "re:.*gate_proj", fragments=[name])
    assert not (tmp_path / "out").exists()


def dequantized(folder):
    """What transformers reads."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=transformers.CompressedTensorsConfig(dequantize=True)).state_dict()


@pytest.mark.parametrize("algorithm", ["rtn", "gptq"])
def test_mxfp4_becomes_nvfp4_exactly(algorithm, sources, samples, tmp_path):
    """Where the scales of a module, and of those that engines fuse with it, are not too far from each other."""
    source = QuantizedSource(tmp_path, "fp4 with powers of two", **SIZES)
    far = "model.layers.1.mlp.down_proj"
    source.change(f"{far}.scale", lambda scale: (scale.float() * torch.ones(scale.shape).index_fill(
        1, torch.tensor([0]), 2.0 ** -24)).to(scale.dtype))
    options = {"rtn": ["--algorithm", "rtn"], "gptq": ["--dataset", samples]}[algorithm]
    outcome, summary = oneshot(source.folder, tmp_path / "out", *options, "--scheme", "NVFP4A16", "--ignore", "lm_head")
    errors = {module["module"]: module["weight_error"] for module in summary["modules"]}
    assert {name for name, error in errors.items() if error > 0} == {far} and len(errors) == len(source.weights)
    assert summary["requantized"]["greatest_in"] == far and "adds to their error" not in outcome.errors
    values, read = tiny_models.tensors(source.values), dequantized(tmp_path / "out")
    for weight in source.weights:
        assert weight == f"{far}.weight" or torch.equal(values[weight], read[weight].bfloat16()), weight


def test_fp8_to_another_fp8_says_what_it_loses(sources, tmp_path):
    source = sources("fp8 block")
    outcome, summary = oneshot(source.folder, tmp_path / "out", "--algorithm", "rtn", "--scheme", "FP8_DYNAMIC", "--ignore",
                               "lm_head")
    assert f"stored in 8-bit float block 48 x 40 and quantized again, which adds to the error: {len(source.weights)} modules" in outcome.errors
    errors = [module["weight_error"] for module in summary["modules"]]
    assert summary["requantized"]["mean_error"] == pytest.approx(sum(errors) / len(errors))
    assert 0.001 < min(errors) and max(errors) < 0.1


def test_the_same_scheme_keeps_the_codes(tmp_path):
    """Also in a mixed recipe; a source of which all of it is so is refused."""
    compressed = compressed_cases.Compressed("rtn FP8_BLOCK", tmp_path / "case")
    mixed = compressed_cases.recipe(
        compressed_cases.ROUNDING,
        {**compressed.config["quantization_config"]["config_groups"]["group_0"], "targets": compressed_cases.ATTENTION},
        compressed_cases.group(compressed_cases.NVFP4, compressed_cases.MLP))
    (tmp_path / "recipe.json").write_text(json.dumps(mixed))
    outcome, summary = oneshot(compressed.folder, tmp_path / "out", "--recipe", tmp_path / "recipe.json")
    attention = [tensor for tensor in compressed.tensors if "self_attn" in tensor]
    same_tensors(tmp_path / "out", compressed.folder, attention)
    assert f"already in the requested scheme stay: {len(attention) // 2} modules" in outcome.errors and "again" not in outcome.errors
    assert summary["kept_weights"] == len(attention) // 2 and all("mlp" in each["module"] for each in summary["modules"])
    program.fails("oneshot", compressed.folder, "--output", tmp_path / "none", "--algorithm", "rtn", "--scheme", "FP8_BLOCK",
                  fragments=["already", "nothing would be done"])


def test_only_the_cache(sources, samples, tmp_path):
    """Scales of keys and values beside a source's codes."""
    source = sources("fp8 block")
    recipe = compressed_cases.recipe(compressed_cases.ROUNDING, kv_cache_scheme=compressed_cases.CACHE_FP8)
    del recipe["quant_stage"]["quant_modifiers"][compressed_cases.ROUNDING]["config_groups"]
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    arguments = ["--recipe", tmp_path / "recipe.json", "--dataset", samples]
    oneshot(source.folder, tmp_path / "out", *arguments)
    oneshot(source.values, tmp_path / "expected", *arguments)
    scales = [name for name in tiny_models.tensors(tmp_path / "expected") if name.endswith(("k_scale", "v_scale"))]
    assert len(scales) == 4
    same_tensors(tmp_path / "out", tmp_path / "expected", scales)
    same_tensors(tmp_path / "out", source.folder, source.weights)
    config = quantized_sources.read_json(tmp_path / "out" / "config.json")["quantization_config"]
    assert config["kv_cache_scheme"]["num_bits"] == 8 and len(config["config_groups"]) == 1


def test_a_resumed_run(sources, samples, tmp_path):
    source = sources("fp8 block")
    arguments = ["--group-size", "32", "--dataset", samples, *SOME]
    expected = program.oneshot(source.folder, tmp_path / "expected", *arguments)
    killed(source.folder, tmp_path / "out", *arguments, subgraphs=1)
    program.oneshot(source.folder, tmp_path / "out", *arguments, "--resume")
    same_tensors(tmp_path / "out", expected)


def test_an_older_file_describes_it(tmp_path):
    """hf_quant_config.json beside config.json; the output has neither."""
    source = QuantizedSource(tmp_path, "modelopt nvfp4")
    tiny_models.rewrite_config(source.folder, lambda config: config.pop("quantization_config"))
    (source.folder / "hf_quant_config.json").write_text(
        json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}}))
    assert "NVFP4" in program.run("inspect", source.folder).output
    oneshot(source.folder, tmp_path / "out", *ROUNDING)
    oneshot(source.values, tmp_path / "expected", *ROUNDING)
    same_tensors(tmp_path / "out", tmp_path / "expected")
    assert not (tmp_path / "out" / "hf_quant_config.json").exists()


def test_transforms_alone(sources, samples, tmp_path):
    """The output has no quantization but that of the weights which it keeps."""
    source = sources("fp8 block")
    recipe = {"quant_stage": {"quant_modifiers": {"SmoothQuantModifier": {}}}}
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    arguments = ["--recipe", tmp_path / "recipe.json", "--dataset", samples]
    oneshot(source.folder, tmp_path / "out", *arguments)
    oneshot(source.values, tmp_path / "expected", *arguments)
    changed = [weight for weight in source.weights if weight.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight",
                                                                      "gate_proj.weight", "up_proj.weight"))]
    same_tensors(tmp_path / "out", tmp_path / "expected", changed)
    config = quantized_sources.read_json(tmp_path / "out" / "config.json")["quantization_config"]
    assert len(config["config_groups"]) == 1
    oneshot(source.folder, tmp_path / "numbers", *arguments, "--dtype", "bfloat16")
    assert "quantization_config" not in quantized_sources.read_json(tmp_path / "numbers" / "config.json")
    same_tensors(tmp_path / "numbers", tmp_path / "expected")


def test_linears_that_engines_run_as_one_are_all_values(sources, samples, tmp_path):
    """AWQ divides up_proj's rows for down_proj, and gate_proj becomes values with it; so do q_proj and k_proj beside a pruned v_proj."""
    source = sources("fp8 block")
    recipe = {"a_stage": {"a_modifiers": {"AWQModifier": {"scheme": "W8A16", "targets": ["re:.*down_proj"],
                                                           "mappings": [{"smooth_layer": "re:.*up_proj", "balance_layers": ["re:.*down_proj"]}]}}},
              "b_stage": {"b_modifiers": {"WandaPruningModifier": {"sparsity": 0.5, "targets": ["re:.*v_proj"]}}}}
    recipe["a_stage"]["a_modifiers"]["AWQModifier"].pop("scheme")
    recipe["a_stage"]["a_modifiers"]["AWQModifier"]["config_groups"] = {
        "group_0": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8, "group_size": 16}}}
    del recipe["a_stage"]["a_modifiers"]["AWQModifier"]["targets"]
    (tmp_path / "recipe.json").write_text(json.dumps(recipe))
    oneshot(source.folder, tmp_path / "out", "--recipe", tmp_path / "recipe.json", "--dataset", samples)
    plain = {name.split(".")[-2] for name, tensor in tiny_models.tensors(tmp_path / "out").items()
             if name.endswith("proj.weight") and tensor.dtype == source.dtype}
    assert plain == {"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"}
    program.run("verify", tmp_path / "out", "--source", source.folder)


def test_tensors_outside_the_graph(samples, tmp_path):
    """Unvisited quantized weights keep their codes and have a group; scales of cached keys are left out by name."""
    source = QuantizedSource(tmp_path, "fp8 block", **SIZES)
    tensors = tiny_models.tensors(source.folder)
    extra, _ = quantized_sources.fp8_block("mtp.fc", torch.randn(64, 128).bfloat16())
    tensors |= {f"mtp.fc.{part}": tensor for part, tensor in extra.items()}
    tensors["mtp.eh_proj.weight"] = torch.randn(64, 128).bfloat16()  # ignored, by a name that the codes do not match
    tensors["model.layers.0.self_attn.k_scale"] = torch.tensor([0.1])
    quantized_sources.save(source.folder, tensors)
    outcome, summary = oneshot(source.folder, tmp_path / "out", *ROUNDING)
    accounted = summary["source_tensors"]
    assert accounted["copied_names"] == ["mtp.eh_proj.weight", "mtp.fc.weight", "mtp.fc.weight_scale_inv"]
    assert [entry["name"] for entry in accounted["dropped"]] == ["model.layers.0.self_attn.k_scale"]
    assert accounted["read"] + accounted["copied"] + 1 == len(tensors)
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert equal_bytes(written["mtp.fc.weight"], extra["weight"])
    assert equal_bytes(written["mtp.fc.weight_scale"], extra["weight_scale_inv"])
    groups = quantized_sources.read_json(tmp_path / "out" / "config.json")["quantization_config"]["config_groups"]
    assert ["mtp.fc"] in [group["targets"] for group in groups.values()]
    oneshot(source.folder, tmp_path / "partly", *ROUNDING, "--targets", "re:.*o_proj")
    for out in ("out", "partly"):
        program.run("verify", tmp_path / out)
        program.run("eval", tmp_path / out, "--dataset", samples)


def test_routers_are_written_as_values(tmp_path):
    """vLLM loads them plain."""
    model = tiny_models.save(tmp_path / "model", "Qwen3Moe", dtype=torch.bfloat16)
    tensors, values = tiny_models.tensors(model), {}
    for name in [name for name in tensors if name.endswith(("proj.weight", "gate.weight"))]:
        module = name.removesuffix(".weight")
        parts, values[name] = quantized_sources.fp8_block(module, tensors.pop(name))
        tensors |= {f"{module}.{part}": tensor for part, tensor in parts.items()}
    tiny_models.rewrite_tensors(model, tensors)
    tiny_models.rewrite_config(model, lambda config: config.update(
        quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": list(quantized_sources.BLOCK)}))
    outcome, _ = oneshot(model, tmp_path / "out", *ROUNDING, "--targets", "re:.*o_proj")
    assert "2 weights that stay uncompressed are written as bfloat16" in outcome.errors
    written = tiny_models.tensors(tmp_path / "out")
    for layer in range(2):
        router, query = f"model.layers.{layer}.mlp.gate.weight", f"model.layers.{layer}.self_attn.q_proj.weight"
        assert equal_bytes(written[router], values[router]) and written[query].dtype == torch.float8_e4m3fn
    program.run("verify", tmp_path / "out", "--source", model)


def test_inspect_and_plan_name_it(sources, samples, tmp_path):
    source = sources("fp8 block")
    described = program.run("inspect", source.folder, "--json").json()
    assert "48 x 40" in described["quantization"] and described["quantized_weights"] == len(source.weights)
    stored, plain = (tiny_models.tensors(folder) for folder in (source.folder, source.values))
    assert described["bytes"] == sum(tensor.nbytes for tensor in stored.values())
    assert described["dequantized_bytes"] == sum(plain[weight].nbytes for weight in source.weights)
    planned = program.run("oneshot", source.folder, "--output", tmp_path / "out", "--dataset", samples, "--dry-run", "--json",
                          "--group-size", "32").json()
    assert planned["source_quantization"] == described["quantization"]
    assert sum(each["weight_bytes"] for each in planned["subgraphs"]) == described["bytes"]


def spoiled(tmp_path, name, tensor, change):
    source = QuantizedSource(tmp_path, name)
    source.change(f"model.layers.1.mlp.up_proj.{tensor}", change)
    return source.folder


def with_first(value):
    def change(tensor):
        wide = tensor.clone()
        wide.view(-1)[0] = value
        return wide
    return change


@pytest.mark.parametrize("name, tensor, change, words", [
    ("fp8 block", "weight_scale_inv", with_first(0), "zero"),
    ("fp8 block", "weight_scale_inv", with_first(float("nan")), "NaN"),
    ("fp8 block", "weight_scale_inv", with_first(-1), "negative"),
    ("fp8 block", "weight_scale_inv", lambda tensor: tensor[:1], "expected [2, 2]"),
    ("fp8 block", "weight_scale_inv", lambda tensor: None, "missing"),
    ("fp8 block", "weight", lambda tensor: None, "missing"),
    ("fp8 block", "weight", lambda tensor: tensor[:48], "shape"),
    ("fp8 block", "weight", with_first(float("nan")), "NaN"),
    ("fp8 tensor", "input_scale", with_first(0), "zero"),
    ("modelopt nvfp4", "weight_scale_2", with_first(0), "zero"),
    ("modelopt nvfp4", "weight_scale", lambda tensor: tensor[:, :1], "expected"),
    ("mxfp8", "weight_scale_inv", with_first(255), "NaN"),
    ("fp4 with powers of two", "scale", with_first(float("nan")), "NaN"),
    ("fp4 with powers of two", "scale", lambda tensor: tensor[:, :1], "expected"),
    ("fp4 with powers of two", "scale", lambda tensor: tensor.float() * 1.5, "powers of two"),
    ("gptq", "scales", with_first(float("inf")), "infinity"),
    ("gptq", "qzeros", with_first(5), "sym"),
    ("gptq", "g_idx", with_first(1), "group"),
    ("awq", "qzeros", lambda tensor: tensor[:, :1], "expected"),
    ("awq", "qweight", lambda tensor: tensor[:32], "expected"),
])
def test_damaged(name, tensor, change, words, tmp_path):
    folder = spoiled(tmp_path, name, tensor, change)
    program.fails("oneshot", folder, "--output", tmp_path / "out", *ROUNDING, fragments=["model.layers.1.mlp.up_proj", words])
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".out*"))


@pytest.mark.parametrize("config, fragments", [
    ({"quant_method": "bitsandbytes"}, ["bitsandbytes", "awq", "compressed-tensors", "fp8", "gptq", "modelopt", "mxfp4"]),
    ({"quant_method": "gptq", "bits": 3}, ["3 bits"]), ({"quant_method": "awq", "version": "gemv"}, ["gemv"]),
    ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, ["W4A8_AWQ"]), ({"quant_method": 7}, ["quant_method"]),
    ({"quant_method": "fp8", "weight_block_size": [0, 128]}, ["weight_block_size"]), ([], ["quantization_config"]),
    ({"bits": 4}, ["quant_method is missing", "remove quantization_config"]),
    ({"quant_method": "gptq", "bits": 4, "is_marlin_format": True}, ["is_marlin_format"]),
])
def test_unknown(config, fragments, sources, tmp_path):
    folder = shutil.copytree(sources("fp8 block").folder, tmp_path / "model")
    tiny_models.rewrite_config(folder, lambda whole: whole.update(quantization_config=config))
    program.fails("oneshot", folder, "--output", tmp_path / "out", *ROUNDING, fragments=fragments)


def test_stacked_experts_in_fp8(tmp_path):
    """Their tensor is named, not a linear that the file does not have."""
    model = tiny_models.save(tmp_path / "model", "Llama")
    stacked = "model.layers.0.mlp.experts.gate_up_proj"
    tensors = tiny_models.tensors(model) | {stacked: torch.ones(2, 16, 16).to(torch.float8_e4m3fn), f"{stacked}_scale_inv": torch.ones(2, 1, 1)}
    tiny_models.rewrite_tensors(model, tensors)
    tiny_models.rewrite_config(model, lambda config: config.update(quantization_config={"quant_method": "fp8", "activation_scheme": "dynamic"}))
    program.fails("inspect", model, fragments=[stacked, "all experts in one quantized tensor"])


def test_zero_points_of_a_byte(tmp_path):
    compressed = compressed_cases.Compressed("rtn W4A16_ASYM", tmp_path / "case")
    tensors = tiny_models.tensors(compressed.folder)
    name = next(name for name in tensors if name.endswith("weight_zero_point"))
    scale = tensors[name.replace("zero_point", "scale")]
    tiny_models.rewrite_tensors(compressed.folder, tensors | {name: torch.zeros_like(scale, dtype=torch.int8)})
    program.fails("inspect", compressed.folder, fragments=[name, "zero points of a byte each"])


@pytest.mark.nightly
def test_gpt_oss(tmp_path, monkeypatch):
    """Stacked experts, through an exported graph."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quantized, values = quantized_sources.save_gpt_oss(tmp_path)
    arguments = ["--algorithm", "rtn", "--group-size", "32", "--targets", "re:.*self_attn.*_proj", "--dtype", "bfloat16"]
    outcome, summary = oneshot(quantized, tmp_path / "out", *arguments)
    oneshot(values, tmp_path / "expected", *arguments)
    same_tensors(tmp_path / "out", tmp_path / "expected")
    assert "written as bfloat16" in outcome.errors and summary["source_tensors"]["dropped"] == []
    # Cut off: fewer experts than config.json has, and scales of fewer experts than blocks.
    tensors = tiny_models.tensors(quantized)
    blocks, scales = (f"model.layers.0.mlp.experts.down_proj_{part}" for part in ("blocks", "scales"))
    quantized_sources.save(quantized, {**tensors, scales: tensors[scales][:-1]})
    program.fails("oneshot", quantized, "--output", tmp_path / "cut", *arguments, fragments=[scales, "expected"])
    quantized_sources.save(quantized, {**tensors, scales: tensors[scales][:-1], blocks: tensors[blocks][:-1]})
    program.fails("oneshot", quantized, "--output", tmp_path / "cut", *arguments, fragments=["experts.down_proj"])
    tensors.pop(blocks)
    quantized_sources.save(quantized, tensors)
    program.fails("oneshot", quantized, "--output", tmp_path / "cut", *arguments, fragments=[scales, "without"])
