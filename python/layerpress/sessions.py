"""LLM Compressor's sessions. Here a run keeps nothing in the process once oneshot() returns, so that there is nothing to reset."""

from __future__ import annotations

import contextlib
from typing import Iterator


class Session:
    """A session without a state."""

    def reset(self) -> None:
        """Nothing is left of earlier runs."""


_session = Session()


def active_session() -> Session:
    return _session


def reset_session() -> None:
    """Nothing is left of earlier runs."""


@contextlib.contextmanager
def create_session() -> Iterator[Session]:
    yield _session
