"""Runs a program and samples its memory from outside, in /proc/PID/status."""
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

INTERVAL = 0.003  # seconds between two looks


class RunFailed(Exception):
    """The program failed; the message contains its last output."""


@dataclass
class Watched:
    """Time and memory of a run."""
    seconds: float        # wall time of the whole process
    anonymous_bytes: int  # largest RssAnon + RssShmem seen: memory that the kernel cannot drop
    resident_bytes: int   # VmHWM: the largest resident set, mapped file pages included
    output: str           # stdout


class MemoryWatch:
    """Keeps the largest values of one process."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self.now_bytes = self.anonymous_bytes = self.resident_bytes = 0

    def look(self) -> None:
        """Takes one sample; a process that has just ended gives none."""
        try:
            lines = self._status.read_text(encoding="ascii", errors="replace").splitlines()
        except OSError:
            return
        sizes = {name: int(rest.split()[0]) << 10 for name, _, rest in (line.partition(":") for line in lines)
                 if name in ("RssAnon", "RssShmem", "VmHWM")}
        if len(sizes) == 3:
            self.now_bytes = sizes["RssAnon"] + sizes["RssShmem"]
            self.anonymous_bytes = max(self.anonymous_bytes, self.now_bytes)
            self.resident_bytes = max(self.resident_bytes, sizes["VmHWM"])

    def until_exit(self, process: subprocess.Popen, tick: Callable[[], None] | None = None) -> None:
        """Samples until the process has ended; calls `tick` after every sample."""
        while process.poll() is None:
            self.look()
            if tick:
                tick()
            time.sleep(INTERVAL)


def run_watched(command: list[str], log: Path, report: Callable[[float, MemoryWatch], None] | None = None,
                report_every: float = 20, environment: dict[str, str] | None = None) -> Watched:
    """Runs `command` (no shell, no stdin) with stderr in the file `log`; calls `report` repeatedly while it runs, which
    may raise to end it."""
    output = log.with_suffix(".stdout")
    start = reported = time.perf_counter()
    with log.open("w", encoding="utf-8") as errors, output.open("w", encoding="utf-8") as printed:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors,
                                   env={**os.environ, **(environment or {})})
    watch = MemoryWatch(process.pid)

    def tick() -> None:
        nonlocal reported
        now = time.perf_counter()
        if report and now - reported >= report_every:
            reported = now
            report(now - start, watch)

    try:
        watch.until_exit(process, tick)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    seconds = time.perf_counter() - start
    if process.returncode != 0:
        last = (log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"])[-1]
        raise RunFailed(f"[memory.run] '{' '.join(command)}' ended with {process.returncode}: {last} (all of it: {log})")
    return Watched(seconds, watch.anonymous_bytes, watch.resident_bytes, output.read_text(encoding="utf-8"))
