"""Runs that are killed at any moment and resumed: the output is that of an undisturbed run, byte for byte."""

import json
import random
import shutil
import time

import pytest
from support import deep_model, program
from support.random_kills import Undisturbed, resume_and_compare, survive_kills
from support.selection import nightly_but
from support.watched_runs import JOURNAL, WatchedRun, clear, contents, differing, killed, unfinished

ROUNDING = ["--algorithm", "rtn", "--group-size", "32"]

# Options of the run, and how often it is killed.
CONFIGURATIONS = {
    "disk": (["--sequential-offload-device", "disk"], 6),
    "linear targets": (["--sequential-targets", "Linear"], 6),
    "shards": (["--max-shard-size", "300KB", "--batch-tokens", "1000"], 4),
    "several layers": (["--sequential-targets-per-subgraph", "3"], 4),
    "basic": (["--pipeline", "basic"], 6),
    "two passes": (["--pipeline", "two_pass"], 4),
    "original model beside it": (["--quality", "best", "--sequential-offload-device", "disk"], 4),
    "original model in memory": (["--quality", "best", "--sequential-targets", "Linear"], 3),
}


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return deep_model.save(tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def solving(deep):
    return deep_model.gptq(deep)


def test_kills(deep, solving, results):
    survive_kills(deep, results / "out", solving, kills=4, seed=7)


@pytest.mark.nightly
def test_thirty_kills(deep, solving, results):
    found = survive_kills(deep, results / "out", solving, kills=30, seed=1)
    assert len(set(found)) >= 5 and sum(count > 0 for count in found) >= 10, f"the kills came too early or late: {found}"


@pytest.mark.parametrize("name", nightly_but(CONFIGURATIONS, "original model in memory"))
def test_kills_with(name, deep, solving, results):
    options, kills = CONFIGURATIONS[name]
    survive_kills(deep, results / "out", [*solving, *options], kills, seed=2)


SMOOTHING = {"SmoothQuantModifier": {"smoothing_strength": 0.8}}
W8A8 = {"GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}}
STATIC = {"QuantizationModifier": {"scheme": "FP8", "ignore": ["lm_head"]}}
SOME_W8A8 = {"GPTQModifier": {"scheme": "W8A8", "ignore": ["lm_head", "re:.*self_attn.*"]}}
# Parameters that were changed, and scales of inputs, are read back from the output or measured again, as codes are.
RECIPES = {"smoothing": SMOOTHING, "smoothing before GPTQ": {**SMOOTHING, **W8A8}, "static inputs": STATIC,
           "smoothing of more than GPTQ compresses": {**SMOOTHING, **SOME_W8A8},
           "smoothing before static inputs": {**SMOOTHING, **STATIC},
           "trials before GPTQ": {"AWQModifier": {"n_grid": 4}, **W8A8},
           "rotations": {"SpinQuantModifier": {}}, "rotations before GPTQ": {"SpinQuantModifier": {}, **W8A8},
           "moved weights and head": {"SpinQuantModifier": {}, "ErrorPropagationModifier": {},
                                      "GPTQModifier": {**W8A8["GPTQModifier"], "error_propagation": True}}}


@pytest.mark.parametrize("name", nightly_but(RECIPES, "moved weights and head"))
def test_kills_with_recipes(name, deep, results):
    recipe = results.with_name("recipe.json")
    recipe.write_text(json.dumps({"quant_stage": {"quant_modifiers": RECIPES[name]}}))
    arguments = ["--recipe", recipe, "--dataset", deep.with_name("tokens.safetensors"), "--threads", "1"]
    survive_kills(deep, results / "out", arguments, kills=3, seed=4)


@pytest.mark.nightly
def test_kills_without_data(deep, results):
    """Too fast for the clock alone: half of the kills wait for the journal."""
    arguments = [*ROUNDING, "--threads", "1"]
    survive_kills(deep, results / "out", arguments, kills=4, seed=3)
    undisturbed = Undisturbed(deep, results / "out", arguments)
    for count in (1, 4, 8):
        if WatchedRun(deep, results / "out", *arguments).wait_for_subgraphs(count).kill():
            resume_and_compare(deep, results / "out", arguments, undisturbed, results.with_name("summary.json"))
        clear(results)


@pytest.mark.nightly
def test_kills_at_the_end(deep, solving, results):
    """When all subgraphs are finished, configuration and index are written, the folder is moved to its place, and the
    journal removed from it: the one thing that a kill may leave in a complete output."""
    undisturbed = Undisturbed(deep, results / "out", solving)
    assert undisturbed.subgraphs > 8
    dice = random.Random(4)
    for _ in range(8):
        run = WatchedRun(deep, results / "out", *solving).wait_for_subgraphs(undisturbed.subgraphs - 1)
        time.sleep(dice.random() * 0.05)
        run.kill()
        if (results / "out").exists():
            assert differing(results / "out", undisturbed.contents, ignored=[JOURNAL]) == []
        program.oneshot(deep, results / "out", *solving, "--resume")
        assert differing(results / "out", undisturbed.contents) == []
        assert list(results.iterdir()) == [results / "out"]
        clear(results)


@pytest.mark.nightly
def test_kills_while_an_output_is_replaced(deep, solving, results):
    """At every moment the output is the complete old one or the complete new one."""
    out = results / "out"
    new = Undisturbed(deep, out, solving)
    old = contents(program.oneshot(deep, out, *ROUNDING))
    dice = random.Random(5)
    for count in (1, 5, new.subgraphs - 1, new.subgraphs - 1, new.subgraphs - 1):
        run = WatchedRun(deep, out, *solving, "--overwrite").wait_for_subgraphs(count)
        time.sleep(dice.random() * 0.05)
        run.kill()
        assert out.exists() and [] in (differing(out, old), differing(out, new.contents, ignored=[JOURNAL]))
        shutil.rmtree(unfinished(out), ignore_errors=True)
    program.oneshot(deep, out, *solving, "--overwrite")
    assert differing(out, new.contents) == [] and list(results.iterdir()) == [out]


@pytest.mark.nightly
def test_resumed_again_and_again(deep, solving, results):
    """Each resumption is killed after one or two more subgraphs; all together do the work once."""
    undisturbed = Undisturbed(deep, results / "out", solving)
    done = killed(deep, results / "out", *solving, subgraphs=1)
    while done < undisturbed.subgraphs - 1:
        before, done = done, killed(deep, results / "out", *solving, "--resume", subgraphs=done + 1)
        assert done > before
    resume_and_compare(deep, results / "out", solving, undisturbed, results.with_name("summary.json"))


def test_a_compressed_embedding_is_read_back(deep, solving, results):
    arguments = [*solving, "--targets", "Linear,Embedding"]
    undisturbed = Undisturbed(deep, results / "out", arguments)
    assert any(b"embed_tokens.weight_packed" in data for data in undisturbed.contents.values())
    killed(deep, results / "out", *arguments, subgraphs=2)
    resume_and_compare(deep, results / "out", arguments, undisturbed, results.with_name("summary.json"))


def test_two_threads(deep, solving, results):
    arguments = [*solving[:-1], "2"]
    undisturbed = Undisturbed(deep, results / "out", arguments)
    killed(deep, results / "out", *arguments, subgraphs=4)
    resume_and_compare(deep, results / "out", arguments, undisturbed, results.with_name("summary.json"))
