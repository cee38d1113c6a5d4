"""The recipes of docs/recipes can be run as they stand."""

import re

import pytest
from support import program, tiny_models

PAGES = sorted((program.REPOSITORY / "docs" / "recipes").glob("*.md"))
RECIPES = [(page.stem, recipe) for page in PAGES for recipe in re.findall(r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    tiny_models.save(folder / "model", hidden_size=128, intermediate_size=256, num_attention_heads=4, num_key_value_heads=4)
    rows = folder / "rows.jsonl"
    rows.write_text('{"input_ids": [1, 2, 3, 4, 5, 6, 7, 8]}\n' * 4)
    tiny_models.save(folder / "mixture", "Qwen3Moe", hidden_size=128, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=128,
                     head_dim=32)
    return folder, rows


def test_every_kind_has_a_recipe():
    assert {page for page, _ in RECIPES} >= {"gptq", "rounding", "smoothquant", "awq", "nvfp4", "kv-cache"}


@pytest.mark.parametrize("page, recipe", RECIPES, ids=[page for page, _ in RECIPES])
def test_recipe_of_a_page(page, recipe, model, tmp_path):
    folder, rows = model
    source = folder / ("mixture" if "expert" in page else "model")
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe)
    program.run("oneshot", source, "--output", tmp_path / "out", "--recipe", path, "--dataset", rows, "--no-progress")
    assert '"quantization_config"' in (tmp_path / "out" / "config.json").read_text()
