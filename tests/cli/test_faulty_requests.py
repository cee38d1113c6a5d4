"""Recipes, options, data and folders that cannot work: refused in one line, before any work, nothing left behind."""

import json
import os
import platform
import resource
import subprocess

import pytest
from support import program, tiny_models


def write_recipe(tmp_path, modifiers, name="recipe.json"):
    path = tmp_path / name
    path.write_text(modifiers if isinstance(modifiers, str) else json.dumps({"a_stage": {"a_modifiers": modifiers}}))
    return path


W4 = {"num_bits": 4, "strategy": "group", "group_size": 32}
GROUPS = {"group_0": {"targets": ["Linear"], "weights": W4}}
Q, K, V = (f"re:.*{name}_proj" for name in "qkv")

FAULTY_MODIFIERS = {
    "unknown modifier": ({"GPTQModifer": {"scheme": "W4A16"}}, ["GPTQModifer", "GPTQModifier"]),
    "SmoothQuant": ({"SmoothQuantModifier": {"smoothing_strenght": 0.8}}, ["smoothing_strenght", "smoothing_strength"]),
    "AWQ": ({"AWQModifier": {"duo_scaling": "both"}}, ["AWQModifier", "quantize"]),
    "SparseGPT": ({"SparseGPTModifier": {"sparsity": 1.5}}, ["SparseGPTModifier", "sparsity 1.5"]),
    "Wanda": ({"WandaPruningModifier": {"mask_structure": "4:2", "sparsity": 0.5}}, ["WandaPruningModifier", "4:2"]),
    "one of two": ({"GPTQModifier": {"config_groups": GROUPS}, "QuIPModifier": {}}, ["QuIPModifier", "SpinQuantModifier"]),
    "unknown argument": ({"GPTQModifier": {"config_groups": GROUPS, "damping_frac": 0.1}}, ["damping_frac", "dampening_frac"]),
    "argument of another": ({"QuantizationModifier": {"config_groups": GROUPS, "block_size": 64}}, ["block_size"]),
    "unknown preset": ({"GPTQModifier": {"scheme": "W4A61"}}, ["W4A61", "W4A16"]),
    "fp4 in groups of 64": ({"QuantizationModifier": {"config_groups": {"g": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "type": "float", "group_size": 64}}}}}, ["not implemented", "MXFP4"]),
    "one preset of two": ({"QuantizationModifier": {"scheme": {"FP8_DYNAMIC": [Q, K, V], "NVFP5": ["re:.*mlp.*"]}}}, ["NVFP5", "NVFP4"]),
    "key-value cache": ({"QuantizationModifier": {"config_groups": GROUPS, "kv_cache_scheme": {"num_bits": 4, "type": "float"}}},
                        ["kv_cache_scheme"]),
    "both forms": ({"GPTQModifier": {"scheme": "W4A16", "config_groups": GROUPS}}, ["scheme", "config_groups"]),
    "neither form": ({"GPTQModifier": {"ignore": ["lm_head"]}}, ["scheme", "config_groups"]),
    "two observers": ({"GPTQModifier": {"config_groups": GROUPS, "weight_observer": "mse", "observer": {"weights": "mse"}}},
                      ["weight_observer", "observer"]),
    "unknown observer": ({"GPTQModifier": {"config_groups": GROUPS, "weight_observer": "hesian"}}, ["hesian", "hessian"]),
    "preset as group": ({"GPTQModifier": {"config_groups": {"W4A16": ["Linear"]}}}, ["W4A16"]),
    "scheme in a group": ({"GPTQModifier": {"config_groups": {"group_0": {"targets": ["Linear"], "scheme": "W4A16"}}}}, ["scheme"]),
    "scheme as arguments": ({"GPTQModifier": {"scheme": {"weights": W4}}}, ["weights"]),
    "an argument of no observer": ({"GPTQModifier": {"config_groups": {"g": {
        "targets": ["Linear"], "weights": {**W4, "observer_kwargs": {"maxshrink": 0.1}}}}}}, ["observer 'hessian' has no argument 'maxshrink'"]),
    "unknown key of weights": ({"GPTQModifier": {"config_groups": {"g": {"targets": ["Linear"], "weights": {**W4, "bits": 4}}}}},
                               ["bits"]),
    "nine bits": ({"GPTQModifier": {"config_groups": {"g": {"targets": ["Linear"], "weights": {**W4, "num_bits": 9}}}}}, ["9"]),
    "no group size": ({"GPTQModifier": {"config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4,
                                                                                                   "strategy": "group"}}}}},
                      ["group_size"]),
    "activation order group": ({"GPTQModifier": {"config_groups": GROUPS, "actorder": "group"}}, ["actorder", "group"]),
    "static activations per group": ({"GPTQModifier": {"config_groups": {"g": {
        "targets": ["Linear"], "weights": W4, "input_activations": {"num_bits": 8, "group_size": 32}}}}}, ["static", "group"]),
    "arguments that are a list": ({"GPTQModifier": ["W4A16"]}, ["GPTQModifier", "mapping"]),
    "targets of nothing": ({"GPTQModifier": {"scheme": "W8A8", "targets": ["re:.*no_such.*"]}}, ["match"]),
    "broken pattern": ({"GPTQModifier": {"scheme": "W8A8", "targets": ["re:(q_proj"]}}, ["re:(q_proj"]),
    "q without k and v": ({"GPTQModifier": {"config_groups": {"group_0": {"targets": [Q], "weights": W4}}}},
                          ["q_proj", "fuse"]),
    "v ignored": ({"GPTQModifier": {"config_groups": GROUPS, "ignore": ["lm_head", V]}}, ["v_proj", "fuse"]),
    "q unlike k": ({"GPTQModifier": {"ignore": ["lm_head"], "config_groups": {
        "group_0": {"targets": [Q], "weights": W4}, "group_1": {"targets": ["Linear"], "weights": {**W4, "num_bits": 8}}}}},
        ["q_proj", "fuse"]),
    "gate unlike up": ({"QuantizationModifier": {"config_groups": {
        "group_0": {"targets": ["re:.*gate_proj"], "weights": W4},
        "group_1": {"targets": ["re:.*up_proj"], "weights": {**W4, "symmetric": False}}}}}, ["gate_proj", "up_proj", "fuse"]),
    "gate ignored": ({"QuantizationModifier": {"config_groups": GROUPS, "ignore": ["lm_head", "model.layers.2.mlp.gate_proj"]}},
                     ["model.layers.2.mlp.gate_proj", "fuse"]),
    "group size that does not divide": ({"GPTQModifier": {"config_groups": {"g": {
        "targets": ["Linear"], "weights": {**W4, "group_size": 48}}}}}, ["48", "q_proj", "group_size 64"]),
    "preset whose groups do not divide": ({"GPTQModifier": {"scheme": "W4A16", "ignore": ["lm_head"]}}, ["W4A16", "groups of 128", "group_size 64"]),
    "target of two modifiers": ({"GPTQModifier": {"config_groups": GROUPS}, "QuantizationModifier": {"config_groups": GROUPS}},
                                ["two modifiers"]),
}


@pytest.mark.parametrize("case", FAULTY_MODIFIERS)
def test_modifiers(case, model, refused, samples, tmp_path):
    modifiers, fragments = FAULTY_MODIFIERS[case]
    refused(model, "--recipe", write_recipe(tmp_path, modifiers), "--dataset", samples, fragments=fragments)


ARGUMENTS = "{targets: Linear, scheme: W8A8, ignore: [lm_head]}"


@pytest.mark.parametrize("text", [
    "", "# nothing\n", "{}", "[]", "just words", "3",
    f"quant_modifiers:\n  GPTQModifier: {ARGUMENTS}\n",
    f"GPTQModifier: {ARGUMENTS}\n",
    f"quant_stage:\n  - GPTQModifier: {ARGUMENTS}\n",
    f"quant_stage:\n  quant_modifiers:\n    - GPTQModifier: {ARGUMENTS}\n",
    f"quant_stage:\n  GPTQModifier: {ARGUMENTS}\n",
    f"quant:\n  quant_modifiers:\n    GPTQModifier: {ARGUMENTS}\n",
    f"quant_stage:\n  modifiers:\n    GPTQModifier: {ARGUMENTS}\n",
    "quant_stage:\n", "quant_stage: {}\n", "quant_stage:\n  quant_modifiers:\n", "quant_stage: {quant_modifiers: {}}",
    "quant_stage: [unclosed\n", "a: &a [*a]\n", "\tquant_stage: 1\n", "quant_stage: {a_modifiers: {GPTQModifier: 3}}",
    f"quant_stage:\n  quant_modifiers:\n    GPTQModifier: {ARGUMENTS}\n    GPTQModifier: {ARGUMENTS}\n",
    "[" * 20_000, "\x00\x01\x02",
])
def test_recipe_without_a_modifier(text, model, refused, samples, tmp_path):
    """Each of these would do nothing, or not what it says."""
    refused(model, "--recipe", write_recipe(tmp_path, text, "recipe.yaml"), "--dataset", samples, fragments=["recipe"])


@pytest.mark.parametrize("option", [["--scheme", "W4A16"], ["--algorithm", "gptq"], ["--ignore", "lm_head"]])
def test_options_that_the_recipe_replaces(option, model, refused, samples, tmp_path):
    """Also where they state their default."""
    recipe = write_recipe(tmp_path, {"GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}})
    refused(model, "--recipe", recipe, "--dataset", samples, *option, fragments=[f"{option[0]} and --recipe"], code=2)


def test_group_size_names_the_columns_of_each(model, refused, samples, tmp_path):
    groups = {"g": {"targets": ["Linear"], "weights": {**W4, "group_size": 48}}}
    recipe = write_recipe(tmp_path, {"GPTQModifier": {"config_groups": groups, "ignore": ["lm_head"]}})
    refused(model, "--recipe", recipe, "--dataset", samples,
            fragments=["g uses groups of 48, which do not divide 64 columns (18 linears, such as model.layers.0.self_attn.q_proj) "
                       "and 128 columns (3 linears, such as model.layers.0.mlp.down_proj)", "group_size 64"])


def test_recipe_file_missing(model, refused, samples, tmp_path):
    refused(model, "--recipe", tmp_path / "none.yaml", "--dataset", samples, fragments=["none.yaml", "no such file"])
    refused(model, "--recipe", tmp_path, "--dataset", samples, fragments=[str(tmp_path)])


@pytest.mark.parametrize("options, fragments", [
    (["--scheme", "W4A61"], ["W4A61", "W4A16"]),
    (["--algorithm", "awq"], ["awq", "gptq"]), (["--group-size", "-1"], ["--group-size"]),
    (["--group-size", "0"], ["--group-size: must be positive, is 0"]),
    (["--scheme", "W8A8", "--group-size", "32"], ["W8A8"]), (["--pipeline", "fast"], ["fast", "sequential", "independent"]),
    (["--pipeline", "datafree"], ["datafree"]), (["--device", "tpu"], ["tpu"]), (["--device", "cuda:99"], ["device"]),
    (["--dtype", "int8"], ["int8"]), (["--threads", "-2"], ["--threads"]), (["--max-shard-size", "many"], ["many"]),
    (["--min-tokens-per-expert", "100"], ["--min-tokens-per-expert", "--no-moe-calibrate-all-experts"]),
    (["--max-shard-size", "0"], ["--max-shard-size"]), (["--batch-tokens", "-5"], ["--batch-tokens"]),
    (["--num-calibration-samples", "0"], ["--num-calibration-samples"]), (["--max-seq-length", "0"], ["--max-seq-length"]),
    (["--sequential-targets", "NoSuchLayer"], ["NoSuchLayer"]), (["--observer", "median"], ["median"]),
    (["--threads", ""], ["--threads: the value is empty"]), (["--push", ""], ["--push: the value is empty"]),
    (["--seed", "-1"], ["--seed: -1 is negative"]), (["--batch-tokens", "9" * 23], ["--batch-tokens: 9999", "is too large a number"]),
])
def test_options(options, fragments, model, refused, samples):
    how = ["--dataset", samples] + (["--group-size", "32"] if "--group-size" not in options and "--scheme" not in options else [])
    wrong_value_of_the_recipe = options[1] == "median"
    refused(model, *how, *options, fragments=fragments, code=1 if wrong_value_of_the_recipe else 2)


def test_data_that_is_needed(model, refused):
    missing = "--dataset is missing: calibration data is needed by "
    refused(model, "--group-size", "32", fragments=[missing + "GPTQModifier"], code=2)
    rounding = missing + "QuantizationModifier "
    refused(model, "--group-size", "32", "--algorithm", "rtn", "--observer", "hessian",
            fragments=[rounding + "(an observer that weighs errors by inputs)"], code=2)
    refused(model, "--algorithm", "rtn", "--scheme", "FP8", fragments=[rounding + "(static scales of inputs in FP8)"], code=2)
    refused(model, "--algorithm", "rtn", "--scheme", "nvfp4-fp8",
            fragments=[rounding + "(static scales of inputs in NVFP4, static scales of keys and values)"], code=2)


def test_recipe_file_and_its_options(model, refused, samples, tmp_path):
    recipe = write_recipe(tmp_path, {"GPTQModifier": {"config_groups": GROUPS}})
    refused(model, "--recipe", recipe, "--dataset", samples, "--scheme", "W8A8",
            fragments=["--scheme and --recipe: a recipe says all of this itself"], code=2)


def test_targets_that_are_parameters(model, refused, tmp_path):
    """LLM Compressor's pruning of training names them."""
    recipe = write_recipe(tmp_path, {"MagnitudePruningModifier": {"final_sparsity": 0.5, "targets": ["re:.*weight"]}})
    refused(model, "--recipe", recipe, fragments=["match no linear module", "name modules (Linear, re:.*q_proj$), not their parameters"])


def test_options_that_do_not_divide(model, refused, samples):
    refused(model, "--dataset", samples, fragments=["128", "model.layers.0.self_attn.q_proj", "add --group-size 64"])


FAULTY_DATA = {
    "broken.jsonl": ('{"input_ids": [1, 2]}\n{"input_ids": [1, 2\n', ["broken.jsonl", "2"]),
    "words.jsonl": ('{"text": "w1"}\nw2\n', ["words.jsonl", "2"]),
    "numbers.jsonl": ("1\n", ["numbers.jsonl"]),
    "empty.jsonl": ("", ["empty.jsonl"]),
    "blank.jsonl": ("\n\n", ["blank.jsonl"]),
    "none.jsonl": ('{"input_ids": []}\n', ["none.jsonl"]),
    "empty.json": ("[]", ["empty.json"]),
    "empty.txt": ("", ["empty.txt"]),
    "high.jsonl": ('{"input_ids": [1, 2]}\n{"input_ids": [95, 96]}\n', ["high.jsonl", "sample 2", "96"]),
    "negative.jsonl": ('{"input_ids": [-1]}\n', ["negative.jsonl", "-1"]),
    "huge.jsonl": ('{"input_ids": [99999999999999999999]}\n', ["huge.jsonl"]),
    "fraction.jsonl": ('{"input_ids": [1.5]}\n', ["fraction.jsonl"]),
    "other.jsonl": ('{"body": "w1"}\n', ["other.jsonl", "body"]),
    "deep.jsonl": ("[" * 100_000, ["deep.jsonl"]),
    "tokens.safetensors": ("nothing", ["tokens.safetensors"]),
    "picture.png": ("x", ["picture.png"]),
}


@pytest.mark.parametrize("name", FAULTY_DATA)
def test_data(name, model, refused, tmp_path):
    content, fragments = FAULTY_DATA[name]
    (tmp_path / name).write_text(content)
    refused(model, "--group-size", "32", "--dataset", tmp_path / name, fragments=fragments)
    if name.startswith(("broken", "high", "empty.jsonl")):
        program.fails("eval", model, "--dataset", tmp_path / name, fragments=fragments)


def test_data_file_missing(model, refused, tmp_path):
    refused(model, "--group-size", "32", "--dataset", tmp_path / "none.jsonl", fragments=["none.jsonl"])
    refused(model, "--group-size", "32", "--dataset", "no-such-owner/no-such-data", fragments=["no-such-owner/no-such-data"])


def test_token_file_of_another_model(model, refused, tmp_path):
    program.write_token_file(tmp_path / "tokens.safetensors", [[1, 2], [3, 400]])
    refused(model, "--group-size", "32", "--dataset", tmp_path / "tokens.safetensors", fragments=["sample 2", "400", "96"])


def test_tokenizer_missing(broken, refused, tmp_path):
    (broken / "tokenizer.json").unlink()
    (broken / "tokenizer_config.json").unlink()
    (tmp_path / "text.jsonl").write_text('{"text": "w1 w2"}\n')
    refused(broken, "--group-size", "32", "--dataset", tmp_path / "text.jsonl", fragments=["tokenizer"])


def test_helper_s_interpreter_missing(model, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERPRESS_PYTHON", "/no/such/python")
    (tmp_path / "text.jsonl").write_text('{"text": "w1 w2"}\n')
    refused(model, "--group-size", "32", "--dataset", tmp_path / "text.jsonl", fragments=["/no/such/python", "LAYERPRESS_PYTHON"])


def test_exported_graphs_cannot_be_kept(model, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    program.fails("inspect", model, "--model-graph", "export", fragments=["cannot be written", "set XDG_CACHE_HOME to a folder"])


def test_output_that_is_not_empty(model, results, rounding):
    out = results / "out"
    out.mkdir()
    (out / "precious").write_text("mine")
    program.fails("oneshot", model, "--output", out, *rounding, code=2, fragments=["not empty", "--overwrite"])
    assert [file.name for file in out.iterdir()] == ["precious"] and list(results.iterdir()) == [out]
    program.oneshot(model, out, *rounding, "--overwrite")
    assert not (out / "precious").exists() and (out / "config.json").exists() and list(results.iterdir()) == [out]


@pytest.mark.parametrize("config", [None, "{}"])
def test_output_that_holds_other_folders(config, model, results, rounding):
    """A folder of models, named in place of a new one in it; or a project, which has a config.json of its own."""
    (results / "models" / "mine").mkdir(parents=True)
    if config is not None:
        (results / "models" / "config.json").write_text(config)
    program.fails("oneshot", model, "--output", results / "models", *rounding, "--overwrite", code=2, fragments=["mine/", "name another folder"])
    assert (results / "models" / "mine").exists() and list(results.iterdir()) == [results / "models"]


def test_output_that_is_empty_or_nested(model, results, rounding):
    (results / "out").mkdir()
    program.oneshot(model, results / "out", *rounding)
    program.oneshot(model, str(results / "a" / "b") + "/", *rounding)
    assert (results / "a" / "b" / "config.json").exists()


def test_output_that_is_a_file_or_the_model(model, results, rounding):
    (results / "file").write_text("x")
    program.fails("oneshot", model, "--output", results / "file", *rounding, code=2, fragments=["not a directory"])
    before = sorted(model.iterdir())
    program.fails("oneshot", model, "--output", model, *rounding, "--overwrite", code=2, fragments=["the model itself"])
    assert sorted(model.iterdir()) == before
    program.fails("oneshot", model, "--output", results / "file" / "out", *rounding, code=None, fragments=["out"])
    assert list(results.iterdir()) == [results / "file"]


def test_failed_overwrite_keeps_what_was_there(broken, model, results, rounding):
    out = program.oneshot(model, results / "out", *rounding)
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    weights = broken / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-2:] = b"\x80\x7f"  # infinity in bf16, in the last tensor
    weights.write_bytes(bytes(data))
    tiny_models.rewrite_config(broken, lambda config: config.update(vocab_size=95))
    program.fails("oneshot", broken, "--output", out, *rounding, "--overwrite", fragments=["embed_tokens"])
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before and list(results.iterdir()) == [out]


@pytest.mark.parametrize("limit", [0, 1000, 50_000])
def test_files_may_not_grow(limit, model, refused, rounding):
    refused(model, *rounding, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)), fragments=["out"])


def test_disk_full(model, tmp_path, rounding):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("no permission to mount a small disk; test_files_may_not_grow stands for it")
    try:
        program.fails("oneshot", model, "--output", disk / "out", *rounding, fragments=["No space left on device"])
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", disk], check=True)


def test_summary_that_cannot_be_written(model, results, rounding, tmp_path):
    program.fails("oneshot", model, "--output", results / "out", *rounding, "--summary", tmp_path / "no" / "summary.json",
                  code=2, fragments=["--summary", str(tmp_path / "no"), "does not exist"])


@pytest.mark.skipif(platform.machine() != "x86_64", reason="there is one set of kernels")
def test_an_unknown_instruction_set(model, samples, results):
    program.fails("oneshot", model, "--output", results / "out", "--dataset", samples, "--group-size", "32", code=2,
                  env={**os.environ, "LAYERPRESS_CPU": "AVX2"}, fragments=["LAYERPRESS_CPU: 'AVX2'", "avx2"])
