"""Recipes mean what they mean to LLM Compressor: peer.json, which record_peer.py makes, says what that is."""

import json
from pathlib import Path

import grid
import pytest
import small_model
import written
from support import program, tiny_models

RECIPES, CORE = grid.recipes(), grid.core()
PEER = json.loads((Path(__file__).parent / "peer.json").read_text())

# Where Layerpress refuses what LLM Compressor takes, and why (docs/recipes.md).
STRICTER = {
    "QuantizationModifier UNQUANTIZED": "leaves weights unquantized",
    "a group of nothing but targets": "leaves weights unquantized",
    "no groups": "non-empty mapping",
    "nothing matches": "match no module",
    "q and k differ": "inference engines fuse them",
    "two modifiers for one module": "a target of two modifiers",
    "GPTQ with nothing before a scheme": "give one of 'scheme' and 'config_groups'",
    "GPTQ with nothing after GPTQ": "give one of 'scheme' and 'config_groups'",
    **{f"{bits} bits per {strategy}": "integer weights are not implemented" for bits in (1, 9) for strategy in ("channel", "group")},
}
# Where LLM Compressor writes a format that vLLM cannot load (docs/formats.md).
LOADABLE = {"QuantizationModifier W4AFP8": "pack-quantized", "GPTQModifier W4AFP8": "pack-quantized"}
# Where Layerpress takes what LLM Compressor refuses.
LAXER = {
    "actorder static in the group, weight in the modifier",
    "actorder weight in the group, static in the modifier",
}
# Where LLM Compressor's targets lead vLLM, or all readers, to another group than the one that was used: Layerpress writes the groups
# in another order, or names modules.
READERS_AGREE = {
    "overlap, patterns in the order of the alphabet": ["re:.*down_proj", "re:.*mlp.*"],
    "overlap, earlier pattern by alphabet": ["re:.*down_proj", "re:.*mlp.*"],
    "overlap, earlier pattern by alphabet, names of groups reversed": ["re:.*down_proj", "re:.*mlp.*"],
    "two modifiers that both name Linear": [
        "Linear", *(f"model.layers.{layer}.mlp.{part}_proj" for layer in (0, 1) for part in ("gate", "up", "down"))],
}
# What a target names but the recipe ignores, of a class of which nothing is compressed: LLM Compressor leaves it out of the config's
# list, and readers take it for compressed.
IGNORED_TOO = {"embedding that is ignored": ["model.embed_tokens"]}


class Compressor:
    """Runs recipes on the model of peer.json, and keeps what the named ones give."""

    def __init__(self, folder):
        self.folder, self.model = folder, small_model.save_model(folder / "model")
        self.original = written.read_tensors(self.model / "model.safetensors")
        assert written.digest(self.original, "") == PEER["model"], "another model than the one of peer.json"
        samples = tiny_models.random_samples([32, 32, 32, 32])
        self.tokens = program.write_token_file(folder / "tokens.safetensors", samples)
        self.outcomes = {}

    def outcome_of(self, name):
        if name not in self.outcomes:
            self.outcomes[name] = self.compress(json.dumps(RECIPES[name]), RECIPES[name])
        return self.outcomes[name]

    def compress(self, text, recipe):
        """What a recipe's text gives: refused and why, or warnings and what was written."""
        path, output = self.folder / "recipe.yaml", self.folder / "out"
        path.write_text(text)
        # Where a recipe names no observer, the fast one is LLM Compressor's default.
        quality = "balanced" if grid.names_observer(recipe) else "fast"
        outcome = program.run("oneshot", self.model, "--output", output, "--recipe", path, "--dataset", self.tokens, "--quality",
                              quality, "--threads", "1", "--overwrite", code=None)
        if outcome.code != 0:
            return {"refused": outcome.error}
        config = json.loads((output / "config.json").read_text())["quantization_config"]
        tensors = written.read_tensors(output / "model.safetensors")
        return {"warnings": outcome.errors.splitlines(), "all bytes": written.digest(tensors, ""),
                **written.summary(config, tensors, self.original)}


@pytest.fixture(scope="session")
def compressor(tmp_path_factory):
    return Compressor(tmp_path_factory.mktemp("conformance"))


def expected(name):
    result = dict(PEER["recipes"][name])
    if "layout" in result:
        for key, table in (("layout", "layouts"), ("ignore", "ignored"), ("config", "configs")):
            result[key] = PEER[table][result[key]]
    return result


def test_the_record_is_of_these_recipes():
    assert list(PEER["recipes"]) == list(RECIPES)
    assert PEER["llmcompressor"] in (program.REPOSITORY / "requirements-peer.txt").read_text()


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in CORE else pytest.mark.nightly) for name in RECIPES])
def test_recipe(name, compressor):
    ours, theirs = compressor.outcome_of(name), expected(name)
    if name in STRICTER:
        assert "refused" not in theirs and STRICTER[name] in ours["refused"]
        return
    if "refused" in theirs:
        assert ("refused" in ours) == (name not in LAXER), ours
        return
    assert "refused" not in ours, ours["refused"]
    if name in LOADABLE:
        assert ours["config"].get("format", "pack-quantized") == LOADABLE[name] != theirs["config"]["format"]
        assert ours["scales"] == theirs["scales"]
        return
    assert ours["layout"] == theirs["layout"]
    assert ours["ignore"] == [*IGNORED_TOO.get(name, []), *theirs["ignore"]]
    if name in READERS_AGREE:
        assert [target for group in ours["config"]["config_groups"].values() for target in group["targets"]] == READERS_AGREE[name]
        assert numbers_of(ours["config"]) == numbers_of(theirs["config"])
    else:
        found = without_targets_for_vllm(ours["config"], theirs["config"])
        assert comparable(found, RECIPES[name]) == comparable(theirs["config"], RECIPES[name])
    if is_minmax_without_data(RECIPES[name]):
        assert (ours["scales"], ours["zero_points"]) == (theirs["scales"], theirs["zero_points"])


@pytest.mark.nightly
def test_verify_accepts_the_results(compressor):
    """Of every recipe's. Layouts are LLM Compressor's, and where no data is used, scales and zero points are, too."""
    as_recorded = 0
    for name, recipe in RECIPES.items():
        ours = compressor.compress(json.dumps(recipe), recipe)
        if "refused" in ours:
            continue
        found = program.run("verify", compressor.folder / "out", "--source", compressor.model, "--json", code=None).json()
        assert found["faults"] == [], f"{name}: {found['faults']}"
        as_recorded += ours["layout"] == expected(name).get("layout") and ours["scales"] == expected(name).get("scales")
    assert as_recorded > 50


@pytest.mark.parametrize("name", grid.KEPT)
def test_recipe_that_llm_compressor_wrote(name, compressor):
    """recipe.yaml out of its checkpoint makes the same checkpoint again, and one line says what has no effect."""
    again = compressor.compress(PEER["recipes"][name]["recipe.yaml"], RECIPES[name])
    assert "refused" not in again, again
    unused = [line for line in again.pop("warnings") if "no effect" in line and "--dataset" not in line]
    assert len(unused) == 1 and "requires_calibration_data" in unused[0], unused
    assert again == {key: value for key, value in compressor.outcome_of(name).items() if key != "warnings"}


def without_targets_for_vllm(ours, theirs):
    """Without what is added to groups with heads and embeddings, which vLLM does not find by LLM Compressor's targets."""
    known = {target for group in theirs["config_groups"].values() for target in group["targets"]}
    added = {"re:.*lm_head$", "Embedding"} - known
    groups = {name: {**group, "targets": [target for target in group["targets"] if target not in added]}
              for name, group in ours["config_groups"].items()}
    return {**ours, "config_groups": groups}


def comparable(config, recipe):
    """An observer that the recipe does not name is the program's own affair."""
    if grid.names_observer(recipe):
        return config
    groups = {name: {key: {**value, "observer": None} if key == "weights" else value for key, value in group.items()}
              for name, group in config["config_groups"].items()}
    return {**config, "config_groups": groups}


def numbers_of(config):
    """Groups in any order, whatever their targets."""
    return sorted(json.dumps({**group, "targets": None}, sort_keys=True) for group in config["config_groups"].values())


def is_minmax_without_data(recipe):
    text = json.dumps(recipe)
    return grid.GPTQ not in text and "mse" not in text
