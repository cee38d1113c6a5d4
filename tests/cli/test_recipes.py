"""Recipes in the shapes that LLM Compressor takes, and what they mean."""

import json

import pytest
from support import program, tiny_models

GROUP = "{num_bits: 4, type: int, symmetric: true, strategy: group, group_size: 32"

RECIPES = {
    "one modifier": """
quant_stage:
  quant_modifiers:
    GPTQModifier: {scheme: W8A8, targets: Linear, ignore: [lm_head]}
""",
    "config_groups": f"""
s_stage:
  m_modifiers:
    QuantizationModifier:
      ignore: ["lm_head", "re:.*mlp.gate$"]
      config_groups:
        group_0: {{targets: ["Linear"], weights: {GROUP}, observer: mse}}}}
""",
    "presets by target": """
s_stage:
  m_modifiers:
    QuantizationModifier:
      scheme: {"FP8_DYNAMIC": ["re:.*self_attn.*_proj$"], "W8A8": ["re:.*mlp.*_proj$"]}
""",
    "two stages": f"""
first_stage:
  quant_modifiers:
    GPTQModifier:
      config_groups: {{group_0: {{targets: ["re:.*self_attn.*"], weights: {GROUP}}}}}}}
second_stage:
  quant_modifiers:
    QuantizationModifier: {{scheme: FP8_DYNAMIC, targets: ["re:.*mlp.*"], weight_observer: minmax}}
""",
    "two groups of modifiers": f"""
quant_stage:
  first_modifiers:
    GPTQModifier: {{scheme: W8A8, targets: ["re:.*self_attn.*"]}}
  second_modifiers:
    GPTQModifier:
      targets: []
      config_groups: {{group_0: {{targets: ["re:.*mlp.*"], weights: {GROUP}}}}}}}
""",
    "all arguments": f"""
quant_stage:
  quant_modifiers:
    GPTQModifier:
      block_size: 64
      dampening_frac: 0.05
      actorder: null
      observer: {{weights: minmax}}
      ignore: lm_head
      config_groups: {{group_0: {{targets: [Linear], weights: {GROUP}}}}}}}
""",
}

SCHEMES = {
    "one modifier": {"Linear": (8, "channel", "int")},
    "config_groups": {"Linear": (4, "group", "int")},
    "presets by target": {"re:.*self_attn.*_proj$": (8, "channel", "float"), "re:.*mlp.*_proj$": (8, "channel", "int")},
    "two stages": {"re:.*self_attn.*": (4, "group", "int"), "re:.*mlp.*": (8, "channel", "float")},
    "two groups of modifiers": {"re:.*self_attn.*": (8, "channel", "int"), "re:.*mlp.*": (4, "group", "int")},
    "all arguments": {"Linear": (4, "group", "int")},
}


def compress(model, results, recipe, samples, name="out"):
    out = program.oneshot(model, results / name, "--recipe", recipe, "--dataset", samples)
    groups = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]
    return out, {target: (scheme["weights"]["num_bits"], scheme["weights"]["strategy"], scheme["weights"]["type"])
                 for scheme in groups.values() for target in scheme["targets"]}


@pytest.mark.parametrize("case", RECIPES)
def test_shapes(case, model, results, samples, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPES[case])
    out, schemes = compress(model, results, recipe, samples)
    assert schemes == SCHEMES[case]
    assert sum(name.endswith("weight_scale") for name in tiny_models.tensors(out)) == 21
    again, _ = compress(model, results, out / "recipe.yaml", samples, "again")
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name, wrap", [
    ("r.yaml", str), ("r.yml", str), ("r", str), ("r.md", lambda text: f"---{text}---\n\n# About\n\ntext: [unclosed\n"),
])
def test_files(name, wrap, model, results, samples, tmp_path):
    (tmp_path / name).write_text(wrap(RECIPES["one modifier"]))
    assert compress(model, results, tmp_path / name, samples)[1] == SCHEMES["one modifier"]


def test_json(model, results, samples, tmp_path):
    document = {"a_stage": {"a_modifiers": {"GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}}}}
    (tmp_path / "r.json").write_text(json.dumps(document))
    assert compress(model, results, tmp_path / "r.json", samples)[1] == SCHEMES["one modifier"]


def test_recipe_and_options_say_the_same(model, results, samples, tmp_path):
    (tmp_path / "r.yaml").write_text(RECIPES["one modifier"])
    out, _ = compress(model, results, tmp_path / "r.yaml", samples)
    by_options = program.oneshot(model, results / "options", "--scheme", "W8A8", "--dataset", samples)
    assert (by_options / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert (by_options / "config.json").read_bytes() == (out / "config.json").read_bytes()


def test_arguments_change_the_result(model, results, samples, tmp_path):
    """Dampening, activation order and observer are heard."""
    base = {"ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
        "num_bits": 4, "strategy": "group", "group_size": 32}}}}
    results_by_argument = {}
    for name, change in {"base": {}, "damp": {"dampening_frac": 0.5}, "order": {"actorder": None},
                         "observer": {"weight_observer": "minmax"}, "blocks": {"block_size": 16}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({"a_stage": {"a_modifiers": {"GPTQModifier": {**base, **change}}}}))
        out, _ = compress(model, results, tmp_path / f"{name}.json", samples, name)
        results_by_argument[name] = tiny_models.tensors(out)["model.layers.0.self_attn.q_proj.weight_packed"].numpy()
    for name in ("damp", "order", "observer"):
        assert (results_by_argument[name] != results_by_argument["base"]).any(), name
    # A block size only says how the work is cut.
    equal = results_by_argument["blocks"].view("uint8") == results_by_argument["base"].view("uint8")
    assert equal.mean() > 0.98


def test_what_has_no_effect_is_said(model, results, tmp_path):
    """One line for arguments that mean nothing in one shot, and one for a group that compresses nothing."""
    group = {"weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}
    arguments = {"ignore": ["lm_head"], "start": 0, "index": 2, "requires_calibration_data": False, "config_groups": {
        "all": {"targets": ["Linear"], **group}, "hidden": {"targets": ["re:.*no_such.*"], **group}}}
    recipe = tmp_path / "r.json"
    recipe.write_text(json.dumps({"a_stage": {"a_modifiers": {"QuantizationModifier": arguments}}}))
    outcome = program.run("oneshot", model, "--output", results / "out", "--recipe", recipe)
    lines = [line for line in outcome.errors.splitlines() if "warning" in line]
    assert sum("index, requires_calibration_data, start have no effect" in line for line in lines) == 1, lines
    assert sum("group 'hidden' compresses nothing" in line for line in lines) == 1, lines


def test_the_written_recipe_repeats_the_run(model, samples, results, tmp_path):
    """GPTQ's default observer has a form that LLM Compressor reads, in config.json as in recipe.yaml."""
    first = program.oneshot(model, results / "out", "--scheme", "W4A16", "--group-size", "32", "--dataset", samples)
    preset = program.oneshot(model, tmp_path / "preset", "--scheme", "W8A8", "--dataset", samples)
    for output, again in ((first, tmp_path / "again"), (preset, tmp_path / "preset again")):
        repeated = program.oneshot(model, again, "--recipe", output / "recipe.yaml", "--dataset", samples)
        assert (repeated / "model.safetensors").read_bytes() == (output / "model.safetensors").read_bytes()
        config = json.loads((output / "config.json").read_text())["quantization_config"]
        assert json.loads((repeated / "config.json").read_text())["quantization_config"] == config
        weights = config["config_groups"]["group_0"]["weights"]
        assert weights["observer"] == "imatrix_mse"
        signed = {"full_range": True} if weights["num_bits"] == 4 else {}
        assert weights["observer_kwargs"] == {"grid": 50, "maxshrink": 0.4, "norm": 2, "patience": 0, **signed}
