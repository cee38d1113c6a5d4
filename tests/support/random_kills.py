"""Runs that are killed at random moments and resumed: the output is that of an undisturbed run, byte for byte."""

import json
import random
import time

from support import program
from support.watched_runs import JOURNAL, WatchedRun, clear, contents, finished_subgraphs, measured, unfinished


def result(out):
    """The files of an output with their bytes; a GGUF is one."""
    return {out.name: out.read_bytes()} if out.is_file() else contents(out)


def differing(out, expected, ignored=()):
    """Names of files that `result` finds otherwise."""
    found = result(out)
    names = (found.keys() | expected.keys()) - set(ignored)
    return sorted(name for name in names if found.get(name) != expected.get(name))


class Undisturbed:
    """What a run gives that nobody disturbs, and how long it takes."""

    def __init__(self, model, out, arguments):
        run = WatchedRun(model, out, *arguments)
        start = time.monotonic()
        self.subgraphs = 0

        def look():
            self.subgraphs = max(self.subgraphs, finished_subgraphs(out))
            return False

        run.wait_until(look)
        self.seconds = time.monotonic() - start
        outcome = run.end()
        assert outcome.code == 0, outcome.errors
        self.contents = result(out)
        clear(out.parent)


def kill_after(model, out, arguments, seconds):
    """Starts a run and kills it after `seconds`; whether it was still alive."""
    run = WatchedRun(model, out, *arguments)
    time.sleep(seconds)
    return run.kill()


def resume_and_compare(model, out, arguments, undisturbed, summary):
    """Resumes what was killed; the output must be complete and equal, and nothing else may be left."""
    before = finished_subgraphs(out)
    program.oneshot(model, out, *arguments, "--resume", "--summary", summary)
    assert json.loads(summary.read_text())["resumed_subgraphs"] == before
    assert differing(out, undisturbed.contents) == []
    assert list(out.parent.iterdir()) == [out]
    return before


def survive_kills(model, out, arguments, kills, seed):
    """Kills a run at `kills` moments spread over its duration, some of its resumptions too. Returns the subgraphs that
    each kill found finished."""
    dice = random.Random(seed)
    undisturbed = Undisturbed(model, out, arguments)
    summary = out.parent.with_name(f"summary-{seed}.json")
    found, duration = [], undisturbed.seconds
    for attempt in range(6 * kills):
        if len(found) == kills:
            break
        share = (len(found) + dice.random()) / kills if attempt < kills else dice.random() * 0.7
        alive = kill_after(model, out, arguments, share * duration)
        if not alive:
            duration *= 0.85  # the machine had more to do while the undisturbed run was timed
        if alive and len(found) % 3 == 2:
            kill_after(model, out, [*arguments, "--resume"], dice.random() * 0.8 * duration)
        if alive and not out.exists():
            assert all(left in (unfinished(out), measured(out)) for left in out.parent.iterdir())
            found.append(resume_and_compare(model, out, arguments, undisturbed, summary))
        elif alive:
            assert differing(out, undisturbed.contents, ignored=[JOURNAL]) == []  # its last act was under way
        clear(out.parent)
    assert len(found) == kills
    return found
