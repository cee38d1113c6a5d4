"""--quality max rotates the model and then does what best does."""

from support import program, tiny_models

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
WEIGHTS = ["--scheme", "W4A16", "--group-size", "32"]


def recipe(path):
    path.write_text("quant_stage:\n  quant_modifiers:\n    SpinQuantModifier: {}\n    GPTQModifier:\n      ignore: [lm_head]\n"
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


def test_a_model_that_cannot_be_rotated(tmp_path):
    """The message names the quality that works."""
    model = tiny_models.save(tmp_path / "model", "Gemma2", **SIZES)
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([60]))
    program.fails("oneshot", model, "--output", tmp_path / "out", "--dataset", samples, *WEIGHTS, "--quality", "max",
                  fragments=["--quality max", "--quality best", "R1"])
    assert not (tmp_path / "out").exists()
