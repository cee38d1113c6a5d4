"""Tiny checkpoints and data for runs of several processes."""

import os
import time

import pytest
from support import exact_model, program, ranked_runs, tiny_models
from support.watched_runs import contents


@pytest.fixture(scope="session")
def exact(tmp_path_factory):
    """A checkpoint and samples whose statistics have no rounding; tests must not change it."""
    return exact_model.ExactModel(tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="session")
def alone(exact, tmp_path_factory):
    """What one process makes of the exact model with some options: the folder, made once per choice of options."""
    made = {}

    def get(*options):
        key = tuple(map(str, options))
        if key not in made:
            made[key] = program.oneshot(exact.folder, tmp_path_factory.mktemp("alone") / "out", *key, "--threads", "1")
        return made[key]

    return get


@pytest.fixture(scope="session")
def expected(exact, alone):
    """The tensors of an undisturbed run with `exact.solving`."""
    return tiny_models.tensors(alone(*exact.solving))


@pytest.fixture
def results(tmp_path):
    """The folder that outputs are made in; empty."""
    folder = tmp_path / "results"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def nothing_is_left():
    """No run leaves processes or shared memory behind, however it ends."""
    before = set(os.listdir("/dev/shm"))
    yield
    left = ranked_runs.survivors()
    for process in left:
        process.kill()
    assert left == []
    shared, deadline = set(os.listdir("/dev/shm")) - before, time.monotonic() + 10
    while shared & set(os.listdir("/dev/shm")):  # tests beside this one may have some for a moment
        assert time.monotonic() < deadline, shared
        time.sleep(0.1)


@pytest.fixture
def untouched(exact):
    """The exact model's files stay as they are."""
    before = contents(exact.folder)
    yield
    assert contents(exact.folder) == before
