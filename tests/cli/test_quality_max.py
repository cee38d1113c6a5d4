"""--quality max rotates the model, does what best does, and moves the head."""
import json

import pytest
from safetensors.torch import load_file
from support import any_model, program, tiny_illustrated, tiny_models

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
WEIGHTS = ["--scheme", "W4A16", "--group-size", "32"]


def recipe(path):
    path.write_text("quant_stage:\n  quant_modifiers:\n    SpinQuantModifier: {}\n    ErrorPropagationModifier: {}\n"
                    "    GPTQModifier:\n      coordinate_descent: {sweeps: 4, damping: 0.3}\n      ignore: [lm_head]\n"
                    "      config_groups:\n        group_0:\n          targets: [Linear]\n"
                    "          weights: {num_bits: 4, strategy: group, group_size: 32}\n")
    return path


def test_same_as_a_recipe_with_rotations(tmp_path):
    model = tiny_models.save(tmp_path / "model", **SIZES)
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([60, 50]))
    data = ["--dataset", samples]
    by_option = program.oneshot(model, tmp_path / "a", *data, *WEIGHTS, "--quality", "max")
    by_recipe = program.oneshot(model, tmp_path / "b", *data, "--recipe", recipe(tmp_path / "recipe.yaml"), "--quality", "best")
    best = program.oneshot(model, tmp_path / "c", *data, *WEIGHTS, "--quality", "best")
    files = [(folder / "model.safetensors").read_bytes() for folder in (by_option, by_recipe, best)]
    assert files[0] == files[1] != files[2]


def test_the_head_makes_up_for_errors(tmp_path):
    """It stays dense, is not the source's, and the result is nearer to the original model; nothing else changes."""
    model = tiny_models.save(tmp_path / "model", **SIZES, tie_word_embeddings=False)
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([60, 50]))
    data = ["--dataset", samples, "--dtype", "fp32"]
    group = {"targets": ["Linear"], "weights": {"num_bits": 3, "strategy": "group", "group_size": 32}}
    gptq = {"ignore": ["lm_head"], "config_groups": {"group_0": group}}
    divergences, files = [], []
    for name, before in (("moved", {"ErrorPropagationModifier": {}}), ("left", {})):
        (tmp_path / f"{name}.json").write_text(json.dumps({"s_stage": {"s_modifiers": before | {"GPTQModifier": gptq}}}))
        result = program.oneshot(model, tmp_path / name, *data, "--recipe", tmp_path / f"{name}.json", "--quality", "best")
        found = program.run("eval", result, "--reference", model, "--dataset", samples, "--dtype", "fp32")
        divergences.append(found.json()["kl_divergence"])
        files.append(load_file(result / "model.safetensors"))
        assert "0 faults, 0 warnings" in program.run("verify", result, "--source", model).output
    assert divergences[0] < 0.9 * divergences[1]
    source = load_file(model / "model.safetensors")
    assert files[0].keys() == files[1].keys()
    assert [name for name in files[0] if not files[0][name].equal(files[1][name])] == ["lm_head.weight"]
    assert files[1]["lm_head.weight"].equal(source["lm_head.weight"])


@pytest.mark.parametrize(("family", "done", "left_out"), [
    ("gemma2", "R2 of order 16", "no R1: R1 would change what this model computes"),
    ("qwen3_5_text", "R1 of order 64", "no R2: R2 turns the values of attentions"),
    ("gpt_neox", "no rotation", "no R2"),
])
def test_models_that_cannot_be_rotated_in_both_ways(tmp_path, family, done, left_out):
    """The rotation that is possible is done, the other is named, and the result's own recipe says the same to `verify`."""
    model = any_model.save(tmp_path / "model", family, tie_word_embeddings=True)
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([60, 50]))
    run = program.run("oneshot", model, "--output", tmp_path / "out", "--dataset", samples, *WEIGHTS, "--quality", "max")
    line = next(line for line in run.errors.splitlines() if "SpinQuantModifier" in line)
    assert done in line and left_out in line and "use rotations" not in line
    assert "0 faults, 0 warnings" in program.run("verify", tmp_path / "out", "--source", model).output
    # Without R1, a head that shares the embedding's weight stays as it is.
    assert ("lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")) == done.startswith("R1")


@pytest.mark.nightly
def test_a_vision_part_that_cannot_be_run(tmp_path):
    """Which rotations a model gets depends on the model alone, and not on whether its processor is there."""
    model = tiny_illustrated.save(tmp_path / "model", "llava")
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([60, 50]))
    program.fails("oneshot", model, "--output", tmp_path / "out", "--dataset", samples, *WEIGHTS, "--quality", "max",
                  fragments=["--quality max (--quality best does without it)", "vision part", "cannot be told"])
    assert not (tmp_path / "out").exists()
