"""GGUF files in parts, as llama-gguf-split makes them: written, resumed and read."""

import os

import gguf
import pytest
from support import block_models, program, tiny_models
from support.local_hub import LocalHub
from support.watched_runs import contents, killed, unfinished

LIMIT = 300_000
DIVIDED = ["--max-shard-size", str(LIMIT)]
ROUNDING = ["--scheme", "Q4_0", "--algorithm", "rtn"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return block_models.save(tmp_path_factory.mktemp("divided") / "model")


@pytest.fixture(scope="module")
def whole(model):
    return program.oneshot(model, model.parent / "whole.gguf", *ROUNDING)


@pytest.fixture(scope="module")
def parts(model):
    return program.oneshot(model, model.parent / "parts.gguf", *ROUNDING, *DIVIDED)


def keys(reader):
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}


def first_of(parts):
    return next(parts.glob("*-00001-of-*.gguf"))


def test_parts_are_the_whole_file(whole, parts):
    files = sorted(parts.iterdir())
    count = len(files)
    assert count > 3 and [file.name for file in files] == [f"parts-{i + 1:05}-of-{count:05}.gguf" for i in range(count)]
    readers = [gguf.GGUFReader(file) for file in files]
    expected = gguf.GGUFReader(whole)
    found = [tensor for reader in readers for tensor in reader.tensors]
    assert [(t.name, t.tensor_type, t.data.tobytes()) for t in found] == [
        (t.name, t.tensor_type, t.data.tobytes()) for t in expected.tensors]
    for reader in readers:
        assert sum(tensor.n_bytes for tensor in reader.tensors) <= LIMIT or len(reader.tensors) == 1
    division = [{"split.no": i, "split.count": count, "split.tensors.count": len(found)} for i in range(count)]
    assert keys(readers[0]) == {**keys(expected), **division[0]}
    assert [keys(reader) for reader in readers[1:]] == division[1:]


def test_parts_are_read_as_one(model, whole, parts, tmp_path):
    made = [program.oneshot(source, tmp_path / f"{i}.gguf", "--scheme", "Q8_0", "--algorithm", "rtn").read_bytes()
            for i, source in enumerate([whole, first_of(parts), parts])]
    assert made[0] == made[1] == made[2]
    program.run("verify", parts, "--source", model)


def test_killed_and_resumed(model, tmp_path):
    rows = tiny_models.random_samples([48] * 24, vocabulary=block_models.SIZES["vocab_size"], seed=3)
    arguments = ["--dataset", program.write_samples(tmp_path / "samples.jsonl", rows), "--sequential-targets", "Linear", *DIVIDED]
    undisturbed = contents(program.oneshot(model, tmp_path / "first" / "out.gguf", *arguments))
    out = tmp_path / "second" / "out.gguf"
    out.parent.mkdir()
    killed(model, out, *arguments)
    program.oneshot(model, out, *arguments, "--resume")
    assert contents(out) == undisturbed and not unfinished(out).exists()


def test_another_result_is_there(model, parts):
    before = contents(parts)
    arguments = ["oneshot", model, "--output", parts, *DIVIDED, "--algorithm", "rtn"]
    assert "already complete" in program.run(*arguments, "--scheme", "Q4_0", "--resume").output
    program.fails(*arguments, "--scheme", "Q8_0", "--resume", fragments=["--overwrite"], code=2)
    program.fails("oneshot", parts, "--output", parts, *ROUNDING, *DIVIDED, "--overwrite", fragments=["holds the model"], code=2)
    assert contents(parts) == before


def test_lost_and_mistaken_parts(parts, tmp_path):
    files = sorted(parts.iterdir())
    program.fails("inspect", files[1], fragments=["name the first one"])
    for file in files[:-1]:
        (tmp_path / file.name).symlink_to(file)
    program.fails("inspect", tmp_path / files[0].name, fragments=[files[-1].name, "missing"])
    (tmp_path / files[-1].name).symlink_to(files[1])
    program.fails("inspect", tmp_path, fragments=["earlier part"])


def test_push_replaces_the_parts_of_an_earlier_upload(model, tmp_path):
    hub = LocalHub()
    (tmp_path / "home").mkdir()
    others = {"model.safetensors": b"mine", "other-00001-of-00002.gguf": b"mine"}
    hub.models["me/result"] = {**others, "out-00001-of-00009.gguf": b"old"}
    try:
        out = program.oneshot(model, tmp_path / "out.gguf", *ROUNDING, *DIVIDED, "--push", "me/result",
                              env=hub.environment(tmp_path / "home", PATH=os.environ["PATH"]))
        assert hub.models["me/result"] == {**others, **contents(out)}
    finally:
        hub.close()
