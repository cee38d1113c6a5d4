"""What a run writes never takes the place of what it reads, of links, or of places that a finished folder cannot replace."""

import json
import shutil
import subprocess

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


def test_files_of_others(model, results, rounding, tmp_path):
    """Those of another model, and those that no run wrote, stay. An earlier summary is replaced."""
    other = shutil.copytree(model, tmp_path / "other")
    notes, summary = tmp_path / "notes.json", tmp_path / "summary.json"
    notes.write_text('{"mine": 1}')
    for option, place, said in (("--summary", other / "model.safetensors", "is no summary of an earlier run"),
                                ("--imatrix", other / "config.json", "may be a model's"),
                                ("--summary", notes, "is no summary of an earlier run")):
        program.fails("oneshot", model, "--output", results / "out", *rounding, option, place, code=2, fragments=[f"[options] {option}", said])
    assert list(results.iterdir()) == [] and notes.read_text() == '{"mine": 1}'
    for _ in range(2):
        program.oneshot(model, results / "out", *rounding, "--overwrite", "--summary", summary)


def test_files_of_inspect(inputs, tmp_path):
    folder, rows = inputs
    measured = ["--sensitivity", "--schemes", "W4A16", "--dataset", rows]
    for options, what in ((["--dot", folder / "config.json"], "a file of the model"),
                          (["--svg", folder / "model.safetensors"], "a file of the model"),
                          (["--svg", tmp_path / "a", "--dot", f"{tmp_path}/./a"], "the file of --svg"),
                          ([*measured, "--summary", folder / "config.json"], "a file of the model"),
                          ([*measured, "--summary", rows], "the dataset")):
        program.fails("inspect", folder, *options, code=2, fragments=[f"would be written over {what}"])


def test_names_of_files_that_are_not_there_yet(inputs, tmp_path, results):
    """A bare name and the same with a dot in front are one file."""
    folder, rows = inputs
    command = ["oneshot", folder, "--dataset", rows, "--group-size", "32"]
    for own, what in ((["--output", "out", "--summary", "./out"], "the result"),
                      (["--output", "out", "--summary", "a.json", "--report", "./a.json"], "the file of --"),
                      (["--output", "out", "--imatrix", "a.json", "--summary", "./a.json"], "the file of --")):
        program.fails(*command, *own, cwd=results, code=2, fragments=[f"would be written over {what}"])
    program.fails(*command, "--output", "inside", cwd=folder, code=2, fragments=["inside is the model itself or inside it"])
    assert list(results.iterdir()) == []


def test_folders_that_hold_inputs(inputs, tmp_path, samples, results):
    """A finished folder takes the place of what is there."""
    folder, rows = inputs
    held = results / "held"
    (held / "inner").mkdir(parents=True)
    data, recipe = shutil.copy(rows, held / "inner"), held / "recipe.yaml"
    recipe.write_text(json.dumps({"s_stage": {"s_modifiers": {"WandaPruningModifier": {"sparsity": 0.5}}}}))
    (results / "link").symlink_to(held)
    own = ["--group-size", "32"]
    for what, given in (("the dataset", ["--dataset", data, *own]), ("the dataset", ["--dataset", results / "link" / "inner" / "rows.jsonl", *own]),
                        ("the recipe", ["--dataset", rows, "--recipe", recipe])):
        program.fails("oneshot", folder, "--output", held, "--overwrite", *given, code=2, fragments=[f"{held} holds {what}"])
    program.fails("oneshot", folder, "--output", held, "--overwrite", *own, "--dataset", rows, "--imatrix", held / "i.dat", code=2,
                  fragments=["--imatrix", "lies in the output"])
    assert {path.name for path in held.iterdir()} == {"inner", "recipe.yaml"}


def test_the_blobs_of_a_download_cache(model, samples, tmp_path):
    """A snapshot of a hub's cache holds links; what they lead to is the model."""
    blobs, snapshot = tmp_path / "models--o--m" / "blobs", tmp_path / "models--o--m" / "snapshots" / "0"
    shutil.copytree(model, blobs)
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    before = {path: path.read_bytes() for path in blobs.iterdir()}
    command = ["oneshot", snapshot, "--dataset", samples, "--group-size", "32"]
    for output, what in ((blobs, "holds the model"), (blobs.parent, "holds the model"), (snapshot, "is the model itself"),
                         (blobs / "config.json", "is the model itself")):
        program.fails(*command, "--output", output, "--overwrite", code=2, fragments=[f"{output} {what}"])
    for option in ("--summary", "--report", "--imatrix"):
        for place in (snapshot / "config.json", blobs / "config.json", blobs / "model.safetensors"):
            program.fails(*command, "--output", tmp_path / "out", option, place, code=2, fragments=["would be written over a file of the model"])
    program.fails("prepare", snapshot, "--dataset", samples, "--output", blobs / "model.safetensors", code=2, fragments=["over a file of the model"])
    assert {path: path.read_bytes() for path in blobs.iterdir()} == before


def test_what_is_not_copied_is_named(model, samples, results, tmp_path):
    folder = shutil.copytree(model, tmp_path / "source")
    for name in ("adapter_config.json", "adapter_model.safetensors", "rust_model.ot", "onnx/model.onnx_data", "additional_chat_templates/rag.jinja"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    command = ["oneshot", folder, "--output", results / "out", "--dataset", samples, "--group-size", "32"]
    said = program.run(*command).errors
    assert "the adapter that is in the folder is not part of the result" in said and "merge_and_unload" in said
    assert "adapter_config.json, adapter_model.safetensors, onnx/, rust_model.ot" in said
    assert (results / "out" / "additional_chat_templates" / "rag.jinja").read_text() == "x"
    assert not {"adapter_config.json", "rust_model.ot", "onnx"} & {path.name for path in (results / "out").iterdir()}
    program.run(*command, "--overwrite")  # the folder of templates is a result's own
    (results / "out" / "notes").mkdir()
    program.fails(*command, "--overwrite", code=2, fragments=["notes/, which no run has written"])


@pytest.mark.parametrize("output", [".", "..", "{here}"])
def test_the_current_directory(output, inputs, tmp_path):
    folder, rows = inputs
    here = tmp_path / "outer" / "here"
    here.mkdir(parents=True)
    program.fails("oneshot", folder, "--output", output.format(here=here), "--overwrite", "--group-size", "32", "--dataset", rows, code=2, cwd=here,
                  fragments=["is the current directory or holds it"])


def test_a_directory_that_is_gone(model, tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(["/bin/sh", "-c", f"rmdir '{gone}'; '{program.PROGRAM}' inspect '{model}'"], cwd=gone, capture_output=True, text=True,
                          check=False)
    assert done.returncode == 1 and done.stderr == "error: [start] the current directory does not exist any more; change to another\n"


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
