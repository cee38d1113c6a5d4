"""Ranks that are killed, stopped or cut off at random moments. LAYERPRESS_RANK_FAULTS sets how often each happens."""

import os
import random
import re
import signal
import time

import pytest
from support import ranked_runs, two_hosts
from support.exact_model import differing
from support.ranked_runs import GRACE, TIMEOUT, RankedRun, rank_environment, wait_for_nobody
from support.watched_runs import clear, finished_subgraphs

pytestmark = pytest.mark.nightly
FAULTS = int(os.environ.get("LAYERPRESS_RANK_FAULTS", "3"))
LIMIT = ["--timeout", TIMEOUT]
NAMES_A_RANK = re.compile(r"\branks? \d|\bstore\b")  # the store is rank 0's


WORK = 0.8  # seconds from the plan to the end of an undisturbed run, on quiet cores
START = 2  # seconds before


def kill(run, victim):
    run.send(victim, signal.SIGKILL)
    return run.end(TIMEOUT + GRACE)


def stop(run, victim):
    """The others end by themselves; the victim ends when it may go on."""
    run.send(victim, signal.SIGSTOP)
    for rank, process in run.processes.items():
        if rank != victim:
            process.wait(TIMEOUT + GRACE)
    run.send(victim, signal.SIGCONT)
    return run.end(TIMEOUT + GRACE)


def disturb(start, fault, dice, out):
    """Runs until the fault has hit a run that was not done; returns how the run ended."""
    for attempt in range(20):
        run = start()
        if dice.random() < 0.3:
            time.sleep(dice.random() * START)
        else:
            run.wait_for_step("plan")
            time.sleep(dice.random() * WORK * 0.8**attempt)  # a fast machine has done the work sooner
        alive = all(process.poll() is None for process in run.processes.values())
        ended = fault(run) if alive else run.end()
        wait_for_nobody(run.mark)
        if not out.exists():
            return ended
        clear(out.parent)  # the fault came behind the last act
    raise AssertionError("no run was alive when its fault came")


def require_message(ended, victim):
    """One line of all ranks that names the victim; before they have found each other, a line of each that waited."""
    if any("[dist.join]" in line for line in ended.error_lines):
        assert len(ended.error_lines) <= len(ended.texts), ended.errors
        assert all(NAMES_A_RANK.search(line) for line in ended.error_lines), ended.errors
    else:
        assert f"rank {victim} " in ended.error, ended.errors


def resume(exact, expected, results, ranks):
    """Any number of ranks goes on, to the tensors of an undisturbed run."""
    out = results / "out"
    found = finished_subgraphs(out)
    if not out.exists():
        ranked_runs.run(ranks, exact.folder, out, *exact.solving, "--resume")
    assert differing(out, expected) == []
    clear(results)
    return found


@pytest.mark.parametrize("fault", [kill, stop])
def test_ranks_of_one_host(fault, exact, expected, results):
    """Every rank ends in time; one line names the victim."""
    dice, found = random.Random(21), []
    for _ in range(FAULTS):
        ranks = dice.choice([2, 3, 4])
        victim = dice.randrange(ranks)
        ended = disturb(lambda ranks=ranks: RankedRun(ranks, exact.folder, results / "out", *exact.solving, *LIMIT),
                        lambda run, victim=victim: fault(run, victim), dice, results / "out")
        require_message(ended, victim)
        found.append(resume(exact, expected, results, dice.choice([1, 2, 3])))
    print(f"crash: {fault.__name__}: {len(found)} runs, which left {min(found)} to {max(found)} subgraphs finished")


@pytest.mark.skipif(bool(two_hosts.possible()), reason=two_hosts.possible())
def test_cut_cable(exact, expected, results):
    """Each host is alone and ends in time, with one line."""
    dice, found = random.Random(22), []
    for _ in range(FAULTS):
        with two_hosts.TwoHosts() as hosts:
            port = ranked_runs.free_port()

            def start(hosts=hosts, port=port):
                hosts.mend()
                environment = lambda host: rank_environment(host, 2, port, two_hosts.ADDRESSES[0], local=(0, 1))
                return RankedRun(2, exact.folder, results / "out", *exact.solving, *LIMIT, port=port, environment_of=environment,
                                 prefix_of=lambda host: hosts.prefix(host))

            def cut(run, hosts=hosts):
                hosts.cut()
                return run.end(TIMEOUT + GRACE)

            ended = disturb(start, cut, dice, results / "out")
        for text, code in zip(ended.texts, ended.codes):
            lines = [line for line in text.splitlines() if line.startswith("error: ")]
            assert len(lines) == (code != 0) and all(NAMES_A_RANK.search(line) for line in lines), ended.errors
        found.append(resume(exact, expected, results, dice.choice([1, 2, 3])))
    print(f"crash: cut: {len(found)} runs, which left {min(found)} to {max(found)} subgraphs finished")
