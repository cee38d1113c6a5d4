"""A rank that is killed, stopped, interrupted or throws ends them all, and the work is not lost."""

import json
import os
import random
import signal
import time

import pytest
from support import exact_model, ranked_runs, tiny_models
from support.exact_model import differing
from support.ranked_runs import GRACE, TIMEOUT, RankedRun, TorchRun, unfinished
from support.selection import nightly_but
from support.watched_runs import finished_subgraphs

LIMIT = ["--timeout", TIMEOUT]
MIDDLE = exact_model.LAYERS // 2

# What a run waits for before a rank is killed, and how many subgraphs it must find finished later.
MOMENTS = {
    "first layer": lambda run: run.wait_for_step("model.layers.0"),
    "calibrate": lambda run: pause(run.wait_for_step(f"model.layers.{MIDDLE}"), 0.005),
    "compress": lambda run: pause(run.wait_for_step(f"model.layers.{MIDDLE}"), 0.02),
    "write": lambda run: run.wait_for_subgraphs(MIDDLE),
    "head": lambda run: run.wait_for_subgraphs(exact_model.SUBGRAPHS - 1),
    "finish": lambda run: run.wait_for_file("config.json"),
}


def pause(run, seconds):
    time.sleep(seconds)
    return run


@pytest.fixture(scope="module")
def slow(exact, tmp_path_factory):
    """The exact model with a companion file whose copy makes the last phase long enough to be hit."""
    folder = exact.with_settings(tmp_path_factory.mktemp("slow") / "model")
    with (folder / "notes.txt").open("wb") as file:
        file.truncate(256 << 20)
    return folder


def start(ranks, model, out, exact, *options, **more):
    return RankedRun(ranks, model, out, *exact.solving, *LIMIT, *options, **more)


def resume(ranks, model, out, exact, expected, **more):
    """The tensors of an undisturbed run; says how many subgraphs were there already."""
    summary = out.parent.with_name(f"resumed-{ranks}.json")
    ranked_runs.run(ranks, model, out, *exact.solving, "--resume", "--summary", summary, **more)
    assert differing(out, expected) == []
    assert list(out.parent.iterdir()) == [out]
    return json.loads(summary.read_text()).get("resumed_subgraphs")


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("moment", nightly_but(MOMENTS, "calibrate", "finish"))
def test_killed(moment, victim, slow, exact, expected, results):
    """The others end by themselves, name the dead, and any number of ranks goes on with what is done."""
    out, model = results / "out", slow if moment == "finish" else exact.folder
    run = MOMENTS[moment](start(3, model, out, exact)).kill(victim)
    ended = run.end_by_failing(f"rank {victim} ")
    assert ended.codes[victim] == -signal.SIGKILL
    done = finished_subgraphs(out)
    ranks = {0: 2, 2: 4}[victim]
    resumed = resume(ranks, model, out, exact, expected)
    assert resumed <= done
    if moment in ("head", "finish"):
        assert resumed > 0


def test_killed_while_it_reads(exact, results, tmp_path):
    """Before any work there is nothing to keep; the helper that tokenizes for the dead does not outlive it."""
    model = exact.with_settings(tmp_path / "model")
    exact_model.save_tokenizer(model)
    rows = [{"text": " ".join(f"w{token}" for token in sample)} for sample in exact.samples]
    (tmp_path / "text.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) * 200)
    run = RankedRun(2, model, results / "out", *exact.scheme, "--dataset", tmp_path / "text.jsonl", *LIMIT)

    def helper_runs():
        return any(not process.is_rank and process.environment.get("RANK") == "1" for process in
                   ranked_runs.survivors(run.mark))

    run.wait_until(helper_runs, "the helper's start").kill(1)
    run.end_by_failing("rank 1 ")
    assert finished_subgraphs(results / "out") == 0


def test_killed_under_torchrun(exact, expected, results):
    run = TorchRun(2, exact.folder, results / "out", *exact.solving, *LIMIT).wait_for_subgraphs(3).kill(1)
    run.end_by_failing("rank 1 ", timeout=TIMEOUT + GRACE + 15)
    assert resume(1, exact.folder, results / "out", exact, expected) >= 1


def test_torchrun_is_killed(exact, expected, results):
    """Its ranks do not stay alone, and stop as if they had been asked to."""
    run = TorchRun(2, exact.folder, results / "out", *exact.solving, *LIMIT).wait_for_subgraphs(2)
    run.processes[0].kill()
    run.processes[0].wait()
    ranked_runs.wait_for_nobody(run.mark)
    assert "--resume" in run.text()
    assert resume(1, exact.folder, results / "out", exact, expected) >= 1


@pytest.mark.nightly
def test_killed_at_random_until_done(exact, expected, results):
    """Every time another rank of another number of ranks dies; the end is that of an undisturbed run."""
    dice, out, killed = random.Random(11), results / "out", 0
    for ranks in (2, 3, 4, 2):
        run = start(ranks, exact.folder, out, exact, "--resume").wait_for_step("plan")
        time.sleep(dice.random() * 0.15)
        run.send(dice.randrange(ranks), signal.SIGKILL)
        killed += any(code != 0 for code in run.end(TIMEOUT + GRACE).codes)
        if out.exists():
            break  # the work was done before
    assert killed > 0
    resume(3, exact.folder, out, exact, expected)


@pytest.mark.parametrize("victim", nightly_but([0, 1], 1))
def test_stopped(victim, exact, expected, results):
    """A rank that does nothing for the time-out is named; it ends, too, when it comes back."""
    out = results / "out"
    run = start(3, exact.folder, out, exact).wait_for_subgraphs(3).send(victim, signal.SIGSTOP)
    began = time.monotonic()
    others = [process for rank, process in run.processes.items() if rank != victim]
    for process in others:
        process.wait(TIMEOUT + GRACE)
    assert time.monotonic() - began > TIMEOUT / 2
    run.send(victim, signal.SIGCONT)
    ended = run.end_by_failing(f"rank {victim} ")
    assert f"{TIMEOUT} s" in ended.error
    assert resume(2, exact.folder, out, exact, expected) >= 1


def test_short_stop_is_no_failure(exact, expected, results):
    """A rank that is slower than the others, but not silent for the time-out, is waited for."""
    run = start(2, exact.folder, results / "out", exact).wait_for_subgraphs(1).send(1, signal.SIGSTOP)
    time.sleep(TIMEOUT / 3)
    run.send(1, signal.SIGCONT)
    assert differing(run.end_well(), expected) == []


@pytest.mark.parametrize("what", nightly_but([signal.SIGINT, signal.SIGTERM], signal.SIGTERM))
def test_interrupted(what, exact, expected, results):
    run = start(3, exact.folder, results / "out", exact).wait_for_subgraphs(2).send(1, what)
    ended = run.end_by_failing("--resume")
    assert ended.codes[1] == 130
    assert resume(2, exact.folder, results / "out", exact, expected) >= 1


@pytest.mark.parametrize("victim", [0, 1])
def test_malformed_row(victim, exact, results, tmp_path):
    """Only one rank reads the row; the message is the reader's, and names the rank."""
    lines = exact.dataset.read_text().splitlines()
    row = 2 + victim * (len(lines) // 2)
    lines[row] = '{"input_ids": [1, -5]}'
    (tmp_path / "spoiled.jsonl").write_text("\n".join(lines) + "\n")
    run = RankedRun(2, exact.folder, results / "out", *exact.scheme, "--num-calibration-samples", len(lines), "--dataset",
                    tmp_path / "spoiled.jsonl", *LIMIT)
    run.end_by_failing(f"rank {victim}", "spoiled.jsonl", str(row + 1))
    assert list(results.iterdir()) == []


def test_damage_is_found_by_whoever_reads_it(exact, expected, results):
    """Bytes that changed between two runs: the rank that owns them sees it, and all make them again."""
    out = results / "out"
    start(2, exact.folder, out, exact).wait_for_subgraphs(5).kill(0).end(TIMEOUT + GRACE)
    for file in sorted(unfinished(out).glob("*.safetensors")):
        with file.open("r+b") as damaged:
            header = int.from_bytes(damaged.read(8), "little")
            damaged.seek(8 + header)
            damaged.write(b"\xff" * 64)
    resume(3, exact.folder, out, exact, expected)


def test_more_ranks_than_anything_to_do(exact, expected, results):
    """Eight ranks, killed and resumed by one: files of eight sets end in one checkpoint."""
    out = results / "out"
    start(8, exact.folder, out, exact).wait_for_subgraphs(2).kill(5).end_by_failing("rank 5 ")
    resume(1, exact.folder, out, exact, expected)
    assert tiny_models.tensors(out).keys() == expected.keys() and os.path.exists(out / "recipe.yaml")
