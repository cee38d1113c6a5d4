"""What a chat template may take. It comes from a checkpoint, and Jinja's sandbox limits neither time nor memory."""

from __future__ import annotations

import re
import resource
import signal
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Iterator

MOST_SECONDS = 10.0  # of computing, for one conversation
MOST_BYTES = 2 << 30  # of memory beyond what the process has
MOST_CHARACTERS = 64 << 20  # of one conversation
MOST_BITS = 4096  # of a product or power of integers, whose computation no signal interrupts


class TooMuch(Exception):
    """A limit that a template exceeds."""


def sandbox(**options: Any):
    """Jinja's sandbox, in which integers stay small."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class LimitedEnvironment(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["*", "**"])

        def call_binop(self, context, operator, left, right):
            if isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() * abs(right) if operator == "**" else left.bit_length() + right.bit_length()
                if bits > MOST_BITS:
                    raise TooMuch(f"it computes an integer of more than {MOST_BITS} bits")
            return super().call_binop(context, operator, left, right)

    return LimitedEnvironment(**options)


@contextmanager
def limited_rendering() -> Iterator[None]:
    """Ends what takes too long by TooMuch, and what takes too much memory by MemoryError."""
    with _limited_memory(), _limited_time():
        yield


@contextmanager
def _limited_memory() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = _data_bytes() + MOST_BYTES
    if limit == MOST_BYTES or soft != resource.RLIM_INFINITY and soft < limit:
        yield
        return
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _data_bytes() -> int:
    """What the limit counts; 0 where the system does not say."""
    try:
        found = re.search(r"^VmData:\s*(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    except OSError:
        return 0
    return int(found[1]) << 10 if found else 0


@contextmanager
def _limited_time() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals; it may be doing something else
        return

    def stop(number, frame):
        raise TooMuch(f"it takes more than {MOST_SECONDS:.0f} s")

    previous = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, previous)
