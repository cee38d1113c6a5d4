"""Runs a program as a user would and measures its time and memory.

Imported by small programs only: Linux counts the parent's resident set at the moment of the start towards the child's peak,
so a parent that holds torch would spoil the figure.
"""
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


@dataclass
class Measured:
    seconds: float       # wall time of the whole process, imports and start-up included
    cpu_seconds: float   # of the process and those it waited for
    peak_bytes: int      # largest resident set of the process or of one that it waited for
    output: str          # stdout


class ProcessFailed(Exception):
    """The program failed; its own message is on stderr."""


def run_measured(command: list[str], environment: dict[str, str] | None = None, log: Path | None = None,
                 text: str = "") -> Measured:
    """Runs `command` (no shell) with `text` as its stdin; stderr goes to the file `log`, or to our own stderr."""
    if log is None:
        return _run(command, environment, None, text)
    with log.open("w", encoding="utf-8") as sink:
        try:
            return _run(command, environment, sink, text)
        except ProcessFailed as error:
            last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"])[-1]
            raise ProcessFailed(f"{error}: {last} (all of it: {log})") from None


def _run(command: list[str], environment: dict[str, str] | None, sink: TextIO | None, text: str) -> Measured:
    with tempfile.TemporaryFile() as source:
        source.write(text.encode())
        source.seek(0)
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=source, stdout=subprocess.PIPE, stderr=sink,
                                   env={**os.environ, **(environment or {})})
    output = process.stdout.read().decode("utf-8", "replace")
    # wait4 reaps this child and returns its resource usage; Popen must then be told the result.
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise ProcessFailed(f"[process.run] '{' '.join(command)}' ended with {process.returncode}")
    return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * peak_unit(), output)


def peak_unit() -> int:
    """ru_maxrss counts KiB on Linux and bytes on macOS."""
    return 1 if sys.platform == "darwin" else 1024
