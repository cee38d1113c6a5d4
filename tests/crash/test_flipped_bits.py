"""One flipped bit in an input, an unfinished run or a finished checkpoint: an error line, or a whole result that differs where the bit was."""

import json
import os
import random
import shutil

import pytest
import torch
from safetensors import safe_open
from support import deep_model, gguf_models, program, tiny_checkpoints, tiny_models
from support.selection import nightly_but
from support.watched_runs import JOURNAL, WatchedRun, clear, contents, differing, finished_subgraphs, measured, measured_records, unfinished

FLIPS = int(os.environ.get("LAYERPRESS_FLIPS", "24"))
OPTIONS = ["--group-size", "32", "--threads", "1"]
PLACES = {"rows": "data/rows.jsonl", "tokens": "data/tokens.safetensors", "recipe": "data/recipe.yaml", "config": "model/config.json",
          "index": "model/model.safetensors.index.json", "shard": "model/model-00001-of-00002.safetensors", "tokenizer": "model/tokenizer.json",
          "gguf": "data/model.gguf", "importance": "data/imatrix.gguf"}
# What a run with a flipped bit in this file is given.
ARGUMENTS = {"rows": ["--dataset", "data/rows.jsonl"], "tokens": ["--dataset", "data/tokens.safetensors"], "recipe": ["--recipe", "data/recipe.yaml"],
             "tokenizer": ["--dataset", "data/texts.jsonl"], "importance": ["--scheme", "Q8_0", "--from-imatrix", "data/imatrix.gguf"]}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A model in two files, and every other kind of input."""
    folder = tmp_path_factory.mktemp("inputs")
    model = tiny_models.save(folder / "model", dtype=torch.bfloat16, vocab_size=600, max_shard_size="200KB")
    assert (folder / PLACES["shard"]).exists(), sorted(path.name for path in model.iterdir())
    tiny_checkpoints.byte_level().save(str(model / "tokenizer.json"))
    data = folder / "data"
    data.mkdir()
    samples = tiny_models.random_samples([40, 50], vocabulary=590)
    program.write_samples(data / "rows.jsonl", samples)
    program.write_token_file(data / "tokens.safetensors", samples)
    (data / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in tiny_checkpoints.TEXTS[:4] if text.strip()))
    (data / "recipe.yaml").write_text("quant_stage:\n  quant_modifiers:\n    QuantizationModifier:\n      targets: [Linear]\n"
                                      "      scheme: FP8_DYNAMIC\n      ignore: ['re:.*lm_head']\n")
    gguf_models.write(tiny_models.save(folder / "small"), data / "model.gguf")
    program.oneshot(model, folder / "first.gguf", "--scheme", "Q8_0", "--dataset", data / "rows.jsonl", "--imatrix", data / "imatrix.gguf")
    return folder


def flip(path, dice):
    """Flips a bit; half of them in the first kilobyte, where headers are."""
    data = bytearray(path.read_bytes())
    place = dice.randrange(min(len(data), 1024 if dice.random() < 0.5 else len(data)))
    data[place] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    return place


@pytest.mark.parametrize("kind", nightly_but(PLACES, "shard", "tokens"))
def test_inputs(kind, inputs, tmp_path):
    dice = random.Random(kind)
    found = harmless = 0
    for number in range(FLIPS):
        own = tmp_path / "own"
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(inputs, own)
        place = flip(own / PLACES[kind], dice)
        results = own / "results"
        results.mkdir()
        model = own / ("data/model.gguf" if kind == "gguf" else "model")
        arguments = [own / each if each.startswith("data/") else each for each in ARGUMENTS.get(kind, ["--algorithm", "rtn"])]
        schemed = any(each in ("--recipe", "--scheme") for each in arguments)
        out = results / ("out.gguf" if kind == "importance" else "out")
        outcome = program.run("oneshot", model, "--output", out, *arguments, *([] if schemed else OPTIONS), code=None)
        where = f"flip {number} at byte {place}: {outcome.errors}"
        if outcome.code != 0:
            assert outcome.code in (1, 2) and outcome.error and not out.exists(), where
            assert "[internal]" not in outcome.error, where
            found += 1
            continue
        assert program.run("verify", out, "--json", code=None).json()["faults"] == [], where
        if kind == "shard":
            compare_weights(inputs, out, tmp_path, where)
        harmless += 1
    print(f"crash: one flipped bit in {kind}: {found} of {FLIPS} found, {harmless} harmless")
    assert found + harmless == FLIPS


def compare_weights(inputs, out, folder, where):
    """No other tensor than one differs from the result without the flip."""
    expected = folder / "expected"
    if not expected.exists():
        program.oneshot(inputs / "model", expected, "--algorithm", "rtn", *OPTIONS)
    ours, theirs = tiny_models.tensors(out), tiny_models.tensors(expected)
    modules = {name.rpartition(".")[0] for name in ours.keys() | theirs.keys()
               if name not in ours or name not in theirs or not torch.equal(ours[name].view(torch.uint8), theirs[name].view(torch.uint8))}
    assert len(modules) <= 1, f"{where}: {modules}"


@pytest.fixture(scope="module")
def finished(inputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    return program.oneshot(inputs / "model", folder / "out", "--algorithm", "rtn", *OPTIONS)


@pytest.mark.nightly
def test_finished_shards(inputs, finished, tmp_path):
    """What verify does not find is one byte of one tensor."""
    dice = random.Random(3)
    found = harmless = 0
    for number in range(FLIPS):
        own = tmp_path / "own"
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(finished, own)
        place = flip(own / "model.safetensors", dice)
        outcome = program.run("verify", own, "--source", inputs / "model", "--json", code=None)
        said = outcome.json()
        if said["faults"] or said["warnings"]:
            found += 1
            continue
        changed = differing_bytes(finished, own)
        assert len(changed) == 1, f"flip {number} at byte {place}: {changed}"
        harmless += 1
    print(f"crash: one flipped bit in a finished shard: {found} of {FLIPS} found, {harmless} harmless")
    assert found > 0


def differing_bytes(first, second):
    """Tensors that differ, with how many of their elements do; metadata does not count."""
    found = {}
    with safe_open(first / "model.safetensors", "pt") as a, safe_open(second / "model.safetensors", "pt") as b:
        for name in a.keys():
            count = int((a.get_tensor(name).view(torch.uint8) != b.get_tensor(name).view(torch.uint8)).sum())
            if count:
                found[name] = count
    return found or {"metadata": 1}


UNFINISHED = {"measurement": ["--target-bits", "7", "--schemes", "W4A16,W8A16", "--group-size", "32"], "journal": ["--group-size", "32"]}


@pytest.mark.nightly
@pytest.mark.parametrize("kind", UNFINISHED)
def test_unfinished_runs(kind, tmp_path):
    """A run that goes on behind a flipped bit in what it wrote down has the result of an undisturbed one."""
    model = deep_model.save(tmp_path / "deep", layers=6, samples=12)
    arguments = [*UNFINISHED[kind], "--dataset", model.with_name("tokens.safetensors"), "--threads", "1"]
    expected = contents(program.oneshot(model, tmp_path / "expected" / "out", *arguments))
    out, left = tmp_path / "results" / "out", tmp_path / "left"
    out.parent.mkdir()
    run = WatchedRun(model, out, *arguments)
    assert run.wait_until(lambda: (len(measured_records(out)) if kind == "measurement" else finished_subgraphs(out)) >= 4)
    assert run.kill()
    shutil.copytree(out.parent, left)
    dice = random.Random(kind)
    for number in range(FLIPS):
        clear(out.parent)
        shutil.copytree(left, out.parent, dirs_exist_ok=True)
        place = flip(measured(out) if kind == "measurement" else unfinished(out) / JOURNAL, dice)
        program.oneshot(model, out, *arguments, "--resume")
        assert differing(out, expected) == [] and list(out.parent.iterdir()) == [out], f"flip {number} at byte {place}"
    print(f"crash: one flipped bit in a {kind}: {FLIPS} with the same result")
