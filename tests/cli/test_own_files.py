"""What a run writes never takes the place of what it reads, of links, or of places that a finished folder cannot replace."""

import json
import shutil

import pytest
from support import program, tiny_models


@pytest.fixture
def inputs(model, tmp_path):
    """A model and a dataset that a command could destroy; what they hold must not change."""
    folder = shutil.copytree(model, tmp_path / "source")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"input_ids": row}) + "\n" for row in tiny_models.random_samples([20] * 4)))
    before = {path: path.read_bytes() for path in [rows, *folder.iterdir()]}
    yield folder, rows
    assert before == {path: path.read_bytes() for path in [rows, *folder.iterdir()]}


@pytest.mark.parametrize("option", ["--summary", "--report", "--imatrix"])
def test_files_beside_the_result(option, inputs, tmp_path, results):
    folder, rows = inputs
    (tmp_path / "link").symlink_to(rows)
    for place, what in ((rows, "the dataset"), (tmp_path / "link", "the dataset"), (folder / "config.json", "a file of the model"),
                        (folder / "model.safetensors", "a file of the model"), (results / "out", "the result")):
        program.fails("oneshot", folder, "--output", results / "out", "--dataset", rows, "--group-size", "32", option, place, code=2,
                      fragments=[f"[options] {option}", f"would be written over {what}; name another file"])
    assert list(results.iterdir()) == []


def test_prepared_data(inputs):
    folder, rows = inputs
    for place, what in ((rows, "the dataset"), (folder / "model.safetensors", "a file of the model")):
        program.fails("prepare", folder, "--dataset", rows, "--output", place, code=2, fragments=["--output", f"over {what}"])


@pytest.mark.parametrize("target", ["folder", "nothing"])
def test_links_as_outputs(target, model, samples, results):
    if target == "folder":
        (results / "folder").mkdir()
    (results / "link").symlink_to(results / target)
    for more in ([], ["--overwrite"], ["--dry-run"]):
        program.fails("oneshot", model, "--output", results / "link", "--dataset", samples, "--group-size", "32", *more, code=2,
                      fragments=["is a link", str(results / target)])
    assert {path.name for path in results.iterdir()} <= {"folder", "link"}


def test_a_plan_refuses_what_the_run_would(model, samples, results):
    (results / "file").touch()
    arguments = ["oneshot", model, "--output", results, "--dataset", samples, "--group-size", "32", "--dry-run"]
    program.fails(*arguments, code=2, fragments=["the directory is not empty"])
    program.run(*arguments, "--overwrite")
    assert [path.name for path in results.iterdir()] == ["file"]
