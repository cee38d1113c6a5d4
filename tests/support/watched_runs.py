"""Runs that a test watches, stops or kills, and the files that they leave behind."""

import json
import os
import shutil
import signal
import subprocess
import time

import xxhash
from watched_process import MemoryWatch

from support import program

DEADLINE = 120
JOURNAL = ".layerpress-journal.jsonl"
RUN = ".layerpress-run.json"  # stays in finished outputs


def unfinished(out):
    """The folder that a run into `out` fills before it is complete."""
    return out.with_name(f".{out.name}.unfinished")


def records(out):
    """The journal's complete records; a line that is only half there is none."""
    try:
        text = (unfinished(out) / JOURNAL).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def journal_line(record):
    """A record as a line of a journal or of a measurement, with its checksum."""
    text = json.dumps({name: value for name, value in record.items() if name != "checksum"})
    return f'{text[:-1]},"checksum":"{xxhash.xxh3_64_hexdigest(text.encode())}"}}'


def finished_subgraphs(out):
    """How many subgraphs the unfinished run into `out` has behind it."""
    return sum(record.get("record") == "subgraph" for record in records(out))


def measured(out):
    """The file of what the run into `out` measures before it writes."""
    return out.with_name(f".{out.name}.measured")


def measured_records(out):
    """The complete lines of that file without the first, which says what is measured."""
    lines = measured(out).read_text(encoding="utf-8").splitlines(keepends=True) if measured(out).exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")][1:]


def contents(folder):
    """All files below `folder` with their bytes."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def differing(folder, expected, ignored=()):
    """Names of files that `contents` finds otherwise in `folder`: a list that is readable when an assertion fails."""
    found = contents(folder)
    names = (found.keys() | expected.keys()) - set(ignored)
    return sorted(name for name in names if found.get(name) != expected.get(name))


class WatchedRun:
    """`layerpress oneshot` as a process that goes on while the test does other things."""

    def __init__(self, model, out, *arguments, prefix=(), **options):
        command = [*map(str, prefix), str(program.PROGRAM), "oneshot", str(model), "--output", str(out),
                   *(str(argument) for argument in arguments)]
        self.out = out
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        stdin=subprocess.DEVNULL, **options)
        self.memory = MemoryWatch(self.process.pid)

    def running(self):
        return self.process.poll() is None

    def wait_until(self, condition):
        """Returns when `condition()` holds; False when the run has ended before."""
        deadline = time.monotonic() + DEADLINE
        while not condition():
            if not self.running():
                return False
            assert time.monotonic() < deadline, "the run does nothing"
            time.sleep(0.001)
        return True

    def wait_for_subgraphs(self, count):
        """Returns when the journal holds `count` finished subgraphs."""
        assert self.wait_until(lambda: finished_subgraphs(self.out) >= count), self.end().errors
        return self

    def wait_for_folder(self):
        """Returns when the unfinished folder is there."""
        assert self.wait_until(unfinished(self.out).exists), self.end().errors
        return self

    def send(self, what):
        self.process.send_signal(what)
        return self

    def kill(self):
        """SIGKILL. Whether it found the run alive."""
        self.process.kill()
        self.end()
        return self.process.returncode == -signal.SIGKILL

    def watch_memory(self):
        """Samples the memory until the run ends."""
        self.memory.until_exit(self.process)
        return self

    def end(self, timeout=DEADLINE):
        """Waits for the run's end and gives its outcome."""
        try:
            output, errors = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return program.Outcome(subprocess.CompletedProcess(self.process.args, self.process.returncode, output, errors))


def killed(model, out, *arguments, subgraphs=3):
    """Leaves an unfinished run behind that was killed with at least `subgraphs` finished subgraphs; says how many."""
    assert WatchedRun(model, out, *arguments).wait_for_subgraphs(subgraphs).kill(), "the run was too fast to be killed"
    assert not out.exists()
    return finished_subgraphs(out)


def check_resumed(model, folder, *arguments):
    """A run that was killed and resumed ends with the files of an undisturbed one."""
    undisturbed = contents(program.oneshot(model, folder / "first" / "out", *arguments))
    out = folder / "second" / "out"
    out.parent.mkdir()
    killed(model, out, *arguments)
    program.oneshot(model, out, *arguments, "--resume")
    assert differing(out, undisturbed) == []


def clear(folder):
    """Removes everything in `folder`."""
    for entry in list(folder.iterdir()):
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            os.unlink(entry)
