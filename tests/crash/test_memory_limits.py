"""Runs in a control group whose memory is the plan and a tenth: none is killed."""

import os
import random
import signal
from pathlib import Path

import pytest
from support import planned_runs
from support.watched_runs import WatchedRun, clear

pytestmark = pytest.mark.nightly
RUNS = int(os.environ.get("LAYERPRESS_LIMITED_RUNS", "8"))
MARGIN = 1.1


class Group:
    """A control group below this process's, of either version."""

    def __init__(self):
        self.folder = None
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root = Path("/sys/fs/cgroup/memory" if controllers == "memory" else "/sys/fs/cgroup")
            limit = "memory.limit_in_bytes" if controllers == "memory" else "memory.max"
            if controllers not in ("memory", ""):
                continue
            folder = root / path.lstrip("/") / f"layerpress-test-{os.getpid()}"
            try:
                folder.mkdir()
                if (folder / limit).exists():
                    self.folder, self.limit = folder, folder / limit
                    return
                folder.rmdir()
            except OSError:
                continue

    def remove(self):
        if self.folder is not None:
            self.folder.rmdir()


@pytest.fixture
def group():
    group = Group()
    if group.folder is None:
        pytest.skip("no permission to make a control group")
    yield group
    group.remove()


def configuration(dice):
    """A shape, samples and tokens, options."""
    shape = dice.choice(["broad", "slim", "even", "narrow", "many words", "broad in fp8"])
    samples, tokens = dice.choice([(2, 256), (8, 512), (32, 512), (48, 256)])
    options = [*dice.choice([["--algorithm", "rtn"], [], ["--quality", "best"], ["--pipeline", "basic"]]),
               *dice.choice([[], ["--scheme", "W8A8"], ["--scheme", "W4A16", "--group-size", "64"]]),
               *dice.choice([[], ["--sequential-offload-device", "disk"], ["--sequential-offload-device", "cpu"]]),
               *dice.choice([[], ["--batch-tokens", "1024"], ["--sequential-targets", "Linear"]]), "--threads", dice.choice(["1", "2"])]
    return shape, samples, tokens, options


def test_memory_is_the_plan_and_a_tenth(group, tmp_path, results):
    dice = random.Random(36)
    closest = 0.0
    for number in range(RUNS):
        shape, samples, tokens, options = configuration(dice)
        model = planned_runs.make_model(tmp_path, shape)
        arguments = [*planned_runs.data(tmp_path, samples, tokens), *options]
        planned = planned_runs.plan(model, results / "out", *arguments)["peak_bytes"]
        group.limit.write_text(str(int(planned * MARGIN)))
        enter = ["sh", "-c", f'echo $$ > {group.folder}/cgroup.procs; exec "$@"', "sh"]
        run = WatchedRun(model, results / "out", *arguments, prefix=enter).watch_memory()
        outcome = run.end()
        where = f"run {number}: {shape}, {samples} x {tokens}, {options}, {planned} bytes planned: {outcome.code} {outcome.errors}"
        assert outcome.code not in (-signal.SIGKILL, 128 + signal.SIGKILL), where
        assert outcome.code == 0, where
        closest = max(closest, run.memory.anonymous_bytes / planned)
        clear(results)
    print(f"crash: {RUNS} runs in control groups of the plan and a tenth, none killed; at most {closest:.2f} of the plan")


def test_limit_is_seen(group, tmp_path, results):
    """A budget follows from the group's limit: too small a one is refused before any work."""
    model = planned_runs.make_model(tmp_path, "broad")
    group.limit.write_text(str(160 << 20))
    enter = ["sh", "-c", f'echo $$ > {group.folder}/cgroup.procs; exec "$@"', "sh"]
    outcome = WatchedRun(model, results / "out", *planned_runs.data(tmp_path, 48, 512), "--quality", "best", prefix=enter).end()
    assert outcome.code == 1 and "memory" in outcome.error, outcome.errors
    assert list(results.iterdir()) == []
