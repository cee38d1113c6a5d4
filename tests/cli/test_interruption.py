"""Runs that are stopped in the middle: the output appears complete at the end, or not at all."""

import signal
import subprocess
import time

import program
import pytest
import tiny_models
import torch


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A model and data that keep the program busy for a second or more after it has begun to write."""
    folder = tmp_path_factory.mktemp("long")
    settings = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 10, "max_position_embeddings": 512}
    tiny_models.save(folder / "model", dtype=torch.bfloat16, **settings)
    program.write_samples(folder / "samples.jsonl", tiny_models.random_samples([256] * 32))
    return [folder / "model", "--dataset", folder / "samples.jsonl", "--threads", "1"]


def start(long_run, out):
    """Starts a run and returns when its unfinished folder is there."""
    command = [str(program.PROGRAM), "oneshot", *map(str, long_run), "--output", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not any(out.parent.iterdir()):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.005)
    return process


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(what, long_run, results):
    process = start(long_run, results / "out")
    time.sleep(0.2)
    assert process.poll() is None and not (results / "out").exists()
    process.send_signal(what)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.splitlines()[-1].startswith("error: ")
    assert "stopped on request" in errors
    assert list(results.iterdir()) == []


def test_interrupted_overwrite_keeps_what_was_there(long_run, results):
    out = results / "out"
    out.mkdir()
    (out / "kept").write_text("old")
    command = [str(program.PROGRAM), "oneshot", *map(str, long_run), "--output", str(out), "--overwrite"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    while len(list(results.iterdir())) < 2:
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 130
    assert list(results.iterdir()) == [out] and (out / "kept").read_text() == "old"


def test_killed_run_leaves_nothing_that_looks_finished(long_run, results):
    process = start(long_run, results / "out")
    process.kill()
    process.communicate()
    assert not (results / "out").exists()
    assert all(left.name.startswith(".") for left in results.iterdir())


def test_output_appears_complete(long_run, results):
    """Whenever it is looked at, the folder is absent or has everything."""
    process = start(long_run, results / "out")
    while process.poll() is None:
        if (results / "out").exists():
            assert {"config.json", "recipe.yaml", "model.safetensors"} <= {file.name for file in (results / "out").iterdir()}
        time.sleep(0.005)
    process.communicate()
    assert process.returncode == 0
    assert list(results.iterdir()) == [results / "out"]
