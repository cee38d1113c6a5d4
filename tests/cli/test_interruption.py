"""Runs that are stopped in the middle: the output appears complete at the end, or not at all."""

import signal

import pytest
from support import deep_model
from support.watched_runs import JOURNAL, WatchedRun, clear, contents, finished_subgraphs, unfinished


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A model and data that keep the program busy for two seconds or more after it has begun to write."""
    model = deep_model.save(tmp_path_factory.mktemp("long"), layers=10, samples=32)
    return [model, *deep_model.gptq(model)]


def start(long_run, out, *options):
    model, *arguments = long_run
    return WatchedRun(model, out, *arguments, *options)


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_interrupt(what, long_run, results):
    """What is finished is kept, and the message says how to go on."""
    outcome = start(long_run, results / "out").wait_for_subgraphs(1).send(what).end(timeout=20)
    assert outcome.code == 130
    assert outcome.errors.splitlines()[-1].startswith("error: ")
    assert "stopped on request" in outcome.errors and "--resume" in outcome.errors
    assert list(results.iterdir()) == [unfinished(results / "out")]
    assert (unfinished(results / "out") / JOURNAL).exists()


def test_interrupt_before_anything_is_finished(long_run, results):
    """Nothing worth keeping is left; a subgraph that ends while the signal is on its way is worth keeping."""
    removed = 0
    for _ in range(6):
        run = start(long_run, results / "out").wait_for_folder()
        assert run.send(signal.SIGINT).end(timeout=20).code == 130
        if unfinished(results / "out").exists():
            assert finished_subgraphs(results / "out") >= 1
        else:
            assert list(results.iterdir()) == []
            removed += 1
        clear(results)
    assert removed > 0


def test_interrupted_overwrite_keeps_what_was_there(long_run, results):
    out = results / "out"
    out.mkdir()
    (out / "kept").write_text("old")
    run = start(long_run, out, "--overwrite").wait_for_subgraphs(2)
    outcome = run.send(signal.SIGINT).end(timeout=20)
    assert outcome.code == 130 and outcome.error.endswith("continue with --overwrite --resume")
    assert contents(out) == {"kept": b"old"}
    assert set(results.iterdir()) == {out, unfinished(out)}
    assert start(long_run, out, "--resume").end().error.endswith("continue that one with --overwrite --resume")


def test_killed_run_leaves_nothing_that_looks_finished(long_run, results):
    assert start(long_run, results / "out").wait_for_folder().kill()
    assert not (results / "out").exists()
    assert all(left.name.startswith(".") for left in results.iterdir())


def test_output_appears_complete(long_run, results):
    """Whenever it is looked at, the folder is absent or has everything."""
    out = results / "out"
    run = start(long_run, out)

    def complete_if_there():
        if out.exists():
            assert {"config.json", "recipe.yaml", "model.safetensors"} <= {file.name for file in out.iterdir()}
        return False

    run.wait_until(complete_if_there)
    outcome = run.end()
    assert outcome.code == 0, outcome.errors
    assert list(results.iterdir()) == [out]
