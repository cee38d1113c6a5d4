"""LLM Compressor's module paths."""

import ast
import importlib
import json

import pytest

# What its examples import, and the older ones.
IMPORTED = [
    ("", "oneshot model_free_ptq"),
    ("modifiers.quantization", "QuantizationModifier GPTQModifier"), ("modifiers.quantization.gptq", "GPTQModifier"),
    ("modifiers.gptq", "GPTQModifier"), ("modifiers.awq", "AWQModifier AWQMapping"), ("modifiers.smoothquant", "SmoothQuantModifier"),
    ("modifiers.transform.awq", "AWQMapping AWQModifier"), ("modifiers.transform.smoothquant", "SmoothQuantModifier"),
    ("modifiers.transform", "SpinQuantModifier QuIPModifier"), ("modifiers.pruning", "REAPPruningModifier"),
    ("modifiers.autoround", "AutoRoundModifier"), ("utils", "load_context dispatch_for_generation"), ("utils.dev", "load_context"),
    ("datasets.utils", "get_rank_partition"), ("datasets", "get_rank_partition"), ("transformers", "oneshot"),
    ("entrypoints", "oneshot model_free_ptq"), ("entrypoints.model_free", "model_free_ptq"),
    ("modeling", "replace_modules_for_calibration moe_calibration_context"), ("core", "active_session create_session reset_session"),
    ("recipe", "Recipe"), ("modifiers", "Modifier"), ("modeling.deepseekv32.model", "DeepseekV32ForCausalLM"),
]


@pytest.mark.parametrize("place, names", IMPORTED)
def test_what_scripts_import(place, names):
    module = importlib.import_module(".".join(filter(None, ("layerpress", place))))
    for name in names.split():
        assert getattr(module, name).__name__ == name


def test_one_class_under_all_paths():
    import layerpress.modifiers.quantization.gptq
    from layerpress.modifiers.gptq.base import GPTQModifier

    assert layerpress.modifiers.quantization.gptq.GPTQModifier is GPTQModifier is layerpress.modifiers.GPTQModifier


@pytest.mark.parametrize("place, hint", [("observers", "observer='mse'"), ("args", "by name"), ("modeling.kimi_k3", "models that transformers has"),
                                         ("modifiers.distillation", "docs/python.md")])
def test_an_absent_path_says_what_to_do(place, hint):
    with pytest.raises(ModuleNotFoundError, match=hint):
        importlib.import_module(f"layerpress.{place}")


def test_type_stubs_of_all_paths(tmp_path):
    """A checker sees the names that the interpreter does."""
    from layerpress import module_paths

    module_paths.write_stubs(tmp_path)
    for place in module_paths.PATHS:
        stub = next(path for path in (tmp_path / (place.replace(".", "/") + ".pyi"), tmp_path / place.replace(".", "/") / "__init__.pyi")
                    if path.exists())
        named = {name.asname for node in ast.parse(stub.read_text()).body for name in node.names}
        assert named == set(importlib.import_module(f"layerpress.{place}").__all__)


def test_sessions_and_experts_change_nothing():
    from layerpress.core import active_session, create_session, reset_session
    from layerpress.modeling import moe_calibration_context, replace_modules_for_calibration

    with create_session() as session, moe_calibration_context():
        assert session is active_session()
    reset_session()
    active_session().reset()
    model = object()
    assert replace_modules_for_calibration(model, calibrate_all_experts=True) is model


def test_recipes_as_objects():
    from layerpress.modifiers import QuantizationModifier
    from layerpress.recipes import recipe_text

    from layerpress.recipe import Recipe

    modifier = QuantizationModifier(scheme="FP8_DYNAMIC", ignore=["lm_head"])
    assert recipe_text(Recipe.create_instance([modifier])) == recipe_text(modifier)
    assert recipe_text(Recipe.create_instance("recipe.yaml")) == "recipe.yaml"
    assert json.loads(recipe_text({"stage": {"m": {"GPTQModifier": {}}}})) == {"stage": {"m": {"GPTQModifier": {}}}}
