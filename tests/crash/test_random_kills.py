"""SIGKILL at random moments over every kind of run. LAYERPRESS_KILLS sets how often each is killed."""

import json
import os
import random
import signal
import time

import pytest
import torch
from support import deep_model, program, tiny_checkpoints, tiny_mllama, tiny_models
from support.random_kills import differing, result, survive_kills
from support.ranked_runs import RankedRun, wait_for_nobody
from support.watched_runs import clear, finished_subgraphs

pytestmark = pytest.mark.nightly
KILLS = int(os.environ.get("LAYERPRESS_KILLS", "3"))

IGNORE = {"ignore": ["lm_head"]}
RECIPES = {
    "static scales": {"QuantizationModifier": {"scheme": "FP8", **IGNORE}},
    "pruning": {"SparseGPTModifier": {"sparsity": 0.5, "mask_structure": "2:4", "ignore": ["re:.*lm_head"]},
                "GPTQModifier": {"scheme": "W8A8", **IGNORE}},
    "smoothing": {"SmoothQuantModifier": {"smoothing_strength": 0.8}, "GPTQModifier": {"scheme": "W8A8", **IGNORE}},
    "trials": {"AWQModifier": {"n_grid": 4}, "GPTQModifier": {"scheme": "W4A16", **IGNORE}},
    "rotations": {"SpinQuantModifier": {}, "GPTQModifier": {"scheme": "W8A8", **IGNORE}},
}
OPTIONS = {
    "dense": ("out", ["--group-size", "32"]),
    "best": ("out", ["--group-size", "32", "--quality", "best"]),
    "spilling": ("out", ["--group-size", "32", "--sequential-offload-device", "disk"]),
    "basic": ("out", ["--group-size", "32", "--pipeline", "basic"]),
    "mixed precision": ("out", ["--target-bits", "7", "--schemes", "W4A16,W8A16,none", "--group-size", "32"]),
}


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return deep_model.save(tmp_path_factory.mktemp("deep"))


def data(model):
    return ["--dataset", model.with_name("tokens.safetensors"), "--threads", "1"]


def said(name, found):
    print(f"crash: {name}: {len(found)} kills resumed, which found {min(found)} to {max(found)} subgraphs finished")


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name, deep, results):
    out, options = OPTIONS[name]
    said(name, survive_kills(deep, results / out, [*options, *data(deep)], KILLS, seed=11))


def test_gguf(tmp_path, results):
    settings = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6, "max_position_embeddings": 512, "vocab_size": 600}
    model = tiny_models.save(tmp_path / "gguf" / "model", dtype=torch.bfloat16, **settings)
    tiny_checkpoints.byte_level().save(str(model / "tokenizer.json"))
    program.write_token_file(model.with_name("tokens.safetensors"), tiny_models.random_samples([256] * 12))
    said("gguf", survive_kills(model, results / "out.gguf", ["--scheme", "Q4_0", "--algorithm", "gptq", *data(model)], KILLS, seed=16))


@pytest.mark.parametrize("name", RECIPES)
def test_recipes(name, deep, results):
    recipe = results.with_name("recipe.json")
    recipe.write_text(json.dumps({f"s{i}_stage": {"m_modifiers": {kind: arguments}} for i, (kind, arguments) in enumerate(RECIPES[name].items())}))
    said(name, survive_kills(deep, results / "out", ["--recipe", recipe, *data(deep)], KILLS, seed=12))


PRUNED = {"a_stage": {"a_modifiers": {"REAPPruningModifier": {"sparsity": 0.5}, "GPTQModifier": {"scheme": "W8A8", **IGNORE}}}}


@pytest.mark.parametrize("mode", [[], ["--no-moe-calibrate-all-experts", "--min-tokens-per-expert", "700"], ["--recipe", json.dumps(PRUNED)]],
                         ids=["all tokens", "routed tokens", "pruned"])
def test_experts(mode, tmp_path, results):
    group = [] if "--recipe" in mode else ["--group-size", "32"]
    model = tiny_models.save(tmp_path / "experts" / "model", "Qwen3Moe", torch.bfloat16, hidden_size=256, num_hidden_layers=3, num_experts=12,
                             num_experts_per_tok=3, moe_intermediate_size=128, head_dim=64, max_position_embeddings=512)
    program.write_token_file(model.with_name("tokens.safetensors"), tiny_models.random_samples([256] * 12))
    said("experts", survive_kills(model, results / "out", [*group, *mode, *data(model)], KILLS, seed=13))


def test_images(tmp_path, results):
    model = tiny_mllama.save(tmp_path / "images" / "model", dtype=torch.bfloat16)
    samples = [tiny_mllama.Sample(20, images=(1 + i % 8,)) for i in range(24)]
    tiny_mllama.write_token_file(model.with_name("tokens.safetensors"), samples)
    said("images", survive_kills(model, results / "out", ["--group-size", "16", *data(model)], KILLS, seed=14))


def test_two_ranks(deep, results):
    """One rank of two dies; the other one ends with a message that names it."""
    arguments = ["--group-size", "32", *data(deep), "--timeout", "10"]
    out, dice, found = results / "out", random.Random(15), []
    start = time.monotonic()
    expected = result(RankedRun(2, deep, out, *arguments).end_well())
    duration = time.monotonic() - start
    clear(results)
    while len(found) < KILLS:
        run = RankedRun(2, deep, out, *arguments)
        time.sleep(dice.random() * duration)
        run.send(dice.randrange(2), signal.SIGKILL)
        ended = run.end(60)
        wait_for_nobody(run.mark)
        assert len(ended.error_lines) <= 1, ended.errors
        if not out.exists():
            found.append(finished_subgraphs(out))
            RankedRun(2, deep, out, *arguments, "--resume").end_well()
            assert list(results.iterdir()) == [out]
            assert differing(out, expected) == []
        clear(results)
    said("two ranks", found)
