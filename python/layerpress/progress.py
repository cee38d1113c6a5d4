"""Where the events of a run go: bars in terminals and notebooks, messages to the logger "layerpress"."""

from __future__ import annotations

import logging
import sys
import threading
import time

from .wording import in_python

logger = logging.getLogger("layerpress")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_SECONDS_BETWEEN_LINES = 60


class Events:
    """Receives the events of one call. With `bars`, shows the model's subgraphs and the phase of the current one, if somebody
    can see bars; a log gets a line a minute instead."""

    def __init__(self, bars: bool):
        self._bars = bars and _shows_bars()
        self._lines = bars and not self._bars
        self._model = self._phase = None
        self._phase_name = self._step = ""
        self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES

    def message(self, level: str, text: str) -> None:
        logger.log(_LEVELS[level], in_python(text))

    def step(self, done: int, total: int, name: str) -> None:
        self._step = f"{done}/{total} {name}"
        self._log_line()
        if self._bars and total > 0:
            if self._model is not None and done > self._model.n + 1:
                _restart(self._model, done)
            self._model = _moved(self._model, done, total, name, position=0, unit="subgraph")
            self._close_phase()

    def phase(self, name: str, done: int, total: int) -> None:
        self._log_line()
        if not self._bars or total < 2:
            return
        if name != self._phase_name:
            self._close_phase()
            self._phase_name = name
        self._phase = _moved(self._phase, done, total, name, position=1, unit="token")

    def close(self) -> None:
        self._close_phase()
        if self._model is not None:
            self._model.close()

    def _log_line(self) -> None:
        if self._lines and time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _SECONDS_BETWEEN_LINES
            logger.info("%s", self._step)

    def _close_phase(self) -> None:
        if self._phase is not None:
            self._phase.close()
        self._phase = None
        self._phase_name = ""


def _shows_bars() -> bool:
    """Whether stderr is a terminal, or this runs in a notebook, whose bars are widgets."""
    if sys.stderr is not None and sys.stderr.isatty():
        return True
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")


def _moved(bar, done: int, total: int, name: str, position: int, unit: str):
    if bar is None or bar.total != total:
        from tqdm.auto import tqdm  # a widget in notebooks

        if bar is not None:
            bar.close()
        bar = tqdm(total=total, position=position, unit=unit, leave=position == 0, mininterval=0.2, unit_scale=unit == "token")
    bar.set_description(name, refresh=False)
    bar.update(done - bar.n)
    return bar


def _restart(bar, done: int) -> None:
    """A resumed run begins behind what an earlier one finished, and its rate is that of its own work."""
    bar.reset()
    bar.initial = bar.n = bar.last_print_n = done


def in_main_thread() -> bool:
    """Python handles signals there only."""
    return threading.current_thread() is threading.main_thread()
