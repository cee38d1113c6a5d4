"""Where the events of a run go: bars in terminals and notebooks, messages to the logger "layerpress"."""

from __future__ import annotations

import logging
import threading

from .wording import in_python

logger = logging.getLogger("layerpress")

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


class Events:
    """Receives the events of one call. With `bars`, shows the model's subgraphs and the phase of the current one."""

    def __init__(self, bars: bool):
        self._bars = bars
        self._model = self._phase = None
        self._phase_name = ""

    def message(self, level: str, text: str) -> None:
        logger.log(_LEVELS[level], in_python(text))

    def step(self, done: int, total: int, name: str) -> None:
        if self._bars and total > 0:
            self._model = _moved(self._model, done, total, name, position=0, unit="subgraph")
            self._close_phase()

    def phase(self, name: str, done: int, total: int) -> None:
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

    def _close_phase(self) -> None:
        if self._phase is not None:
            self._phase.close()
        self._phase = None
        self._phase_name = ""


def _moved(bar, done: int, total: int, name: str, position: int, unit: str):
    if bar is None or bar.total != total:
        from tqdm.auto import tqdm  # a widget in notebooks

        if bar is not None:
            bar.close()
        bar = tqdm(total=total, position=position, unit=unit, leave=position == 0, mininterval=0.2, unit_scale=unit == "token")
    bar.set_description(name, refresh=False)
    bar.update(done - bar.n)
    return bar


def in_main_thread() -> bool:
    """Python handles signals there only."""
    return threading.current_thread() is threading.main_thread()
