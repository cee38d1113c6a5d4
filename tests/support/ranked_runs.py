"""`layerpress oneshot` as several processes that a test watches, stops or kills, and the files that they leave behind."""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from support import program
from support.watched_runs import RUN, finished_subgraphs, unfinished

DEADLINE = 90
TIMEOUT = 4          # seconds of --timeout in tests of faults
GRACE = 12           # what ending may take beyond it on a busy machine
MARK = "LAYERPRESS_TEST_RUN"
SESSION = uuid.uuid4().hex  # of this test process; children inherit it, however deep


class Process:
    """A running process that carries our mark."""

    def __init__(self, pid, environment, words):
        self.pid, self.environment, self.words = pid, environment, words

    @property
    def is_rank(self):
        return bool(self.words) and Path(self.words[0]).name == program.PROGRAM.name and "RANK" in self.environment

    def kill(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def __repr__(self):
        return f"{self.pid}: {' '.join(self.words)[:120]}"


def survivors(mark=SESSION):
    """All living processes below us that carry the mark; zombies have no environment."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            lines = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        environment = dict(line.split("=", 1) for line in lines if "=" in line)
        if environment.get(MARK, "").startswith(mark):
            found.append(Process(int(folder.name), environment, words))
    return found


def free_port():
    """A port below those that the system gives to connections of other tests, which would take it before the ranks do."""
    while True:
        port = random.SystemRandom().randrange(20000, 32768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def rank_environment(rank, ranks, port, address="127.0.0.1", local=None):
    """The environment that a launcher gives one rank; `local`: its number on its node, and the number of ranks there."""
    local_rank, local_size = local or (rank, ranks)
    return {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size), "MASTER_ADDR": address, "MASTER_PORT": str(port)}


class Ended:
    """How all processes of a run ended, and all that they said."""

    def __init__(self, codes, texts, seconds):
        self.codes, self.texts, self.seconds = codes, texts, seconds
        self.errors = "\n".join(texts)

    @property
    def error_lines(self):
        return [line for line in self.errors.splitlines() if line.startswith("error: ")]

    @property
    def error(self):
        """The error line, which must be the only one of all ranks; and none of them may have crashed by itself."""
        assert len(self.error_lines) == 1, self.errors
        assert "terminate called" not in self.errors and "Segmentation" not in self.errors, self.errors
        return self.error_lines[0]


class RankedRun:
    """Processes of one run, started by hand: no launcher ends them.

    `own` gives a rank's further arguments, `model_of` its model, `environment_of` its further variables, `program_of` its
    program, `prefix_of` the words before it; all are functions of the rank.
    """

    def __init__(self, ranks, model, out, *arguments, own=lambda rank: [], model_of=None, environment_of=lambda rank: {},
                 prefix_of=lambda rank: [], program_of=lambda rank: program.PROGRAM, port=None, only=None):
        self.out, self.ranks, self.port = Path(out), ranks, port or free_port()
        self.mark = f"{SESSION}-{uuid.uuid4().hex}"
        self.start = time.monotonic()
        self.processes, self.logs = {}, {}
        for rank in range(ranks) if only is None else only:
            command = [*prefix_of(rank), program_of(rank), "oneshot", model_of(rank) if model_of else model, "--output",
                       out, *arguments, *own(rank)]
            if "--threads" not in map(str, command):
                command += ["--threads", "1"]
            if "--log-level" not in map(str, command):
                command += ["--log-level", "debug"]  # a line for every step
            environment = {**rank_environment(rank, ranks, self.port), **environment_of(rank)}
            self.launch(rank, command, environment)

    def launch(self, name, command, environment):
        self.logs[name] = tempfile.TemporaryFile()
        self.processes[name] = subprocess.Popen(
            list(map(str, command)), stdin=subprocess.DEVNULL, stdout=self.logs[name], stderr=subprocess.STDOUT,
            env={**os.environ, **environment, MARK: self.mark})

    def text(self, name=0):
        """The output of a rank so far."""
        size = os.fstat(self.logs[name].fileno()).st_size
        return os.pread(self.logs[name].fileno(), size, 0).decode(errors="replace")

    def running(self):
        return any(process.poll() is None for process in self.processes.values())

    def pid(self, rank):
        return self.processes[rank].pid

    def wait_until(self, condition, what):
        """Returns when `condition()` holds; fails when the run ends before."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            if not self.running() or time.monotonic() > deadline:
                raise AssertionError(f"the run ended before {what}: {self.end().errors}")
            time.sleep(0.001)
        return self

    def wait_for_subgraphs(self, count):
        """Returns when the first rank's journal holds `count` finished subgraphs."""
        return self.wait_until(lambda: finished_subgraphs(self.out) >= count, f"{count} subgraphs")

    def wait_for_step(self, name):
        """Returns when the first rank is at this step."""
        return self.wait_until(lambda: re.search(rf"info: \d+/\d+ {re.escape(name)} ", self.text(0)), name)

    def wait_for_file(self, name):
        """Returns when the unfinished folder holds a file of this name."""
        return self.wait_until((unfinished(self.out) / name).exists, name)

    def send(self, rank, what):
        os.kill(self.pid(rank), what)
        return self

    def kill(self, rank):
        """SIGKILL, which must find the rank alive."""
        assert self.processes[rank].poll() is None, f"rank {rank} was too fast: {self.text(rank)}"
        return self.send(rank, signal.SIGKILL)

    def end(self, timeout=DEADLINE):
        """Waits for all processes' end, which must come in time."""
        waited, late = time.monotonic(), []
        for name, process in self.processes.items():
            try:
                process.wait(max(0.0, waited + timeout - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(name)
                process.kill()
                process.wait()
        texts = [self.text(name) for name in self.processes]
        assert not late, f"ranks {late} go on after {timeout} s: {texts}"
        return Ended([process.returncode for process in self.processes.values()], texts, time.monotonic() - waited)

    def end_by_failing(self, *fragments, timeout=TIMEOUT + GRACE):
        """All processes end in time, none well, with one error line that has all fragments; nothing looks finished."""
        ended = self.end(timeout)
        assert all(code != 0 for code in ended.codes), ended.errors
        for fragment in fragments:
            assert fragment in ended.error, ended.errors
        wait_for_nobody(self.mark)
        assert not self.out.exists()
        return ended

    def end_well(self):
        ended = self.end()
        assert all(code == 0 for code in ended.codes), ended.errors
        assert ended.error_lines == []
        wait_for_nobody(self.mark)
        return self.out


class TorchRun(RankedRun):
    """The same, started by torchrun. `wrapper`: words before the program, run by every rank."""

    def __init__(self, ranks, model, out, *arguments, options=(), wrapper=(), prefix=(), name=0):
        self.out, self.ranks, self.port = Path(out), ranks, free_port()
        self.mark = f"{SESSION}-{uuid.uuid4().hex}"
        self.processes, self.logs = {}, {}
        command = [*prefix, *torchrun(ranks, self.port, *options), *wrapper, program.PROGRAM, "oneshot", model, "--output", out,
                   "--threads", "1", *arguments]
        self.launch(name, command, {})

    def pid(self, rank):
        """Of the program, not of what started it."""
        for process in survivors(self.mark):
            if process.is_rank and process.environment["RANK"] == str(rank):
                return process.pid
        raise AssertionError(f"rank {rank} does not run: {self.text()}")

    def kill(self, rank):
        return self.send(rank, signal.SIGKILL)


def torchrun(ranks, port, *options):
    """The launcher's words for `ranks` processes on this node."""
    return [sys.executable, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", ranks, "--master-port", port,
            *options]


def wait_for_nobody(mark, seconds=10):
    """The processes that a rank started end soon after it."""
    deadline = time.monotonic() + seconds
    while survivors(mark):
        assert time.monotonic() < deadline, f"left running: {survivors(mark)}"
        time.sleep(0.02)


def run(ranks, model, out, *arguments, **options):
    """A run that must end well; returns the output folder, beside which nothing may be left."""
    RankedRun(ranks, model, out, *arguments, **options).end_well()
    assert not unfinished(Path(out)).exists()
    assert {file.name for file in Path(out).glob(".*")} <= {RUN}, "journals stay only as long as they are needed"
    return Path(out)


def may_mount():
    """Whether a process of ours may have mounts of its own."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(probe, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
