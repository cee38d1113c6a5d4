"""Calls of the extension module: options under Python's names, results as objects."""

from __future__ import annotations

import difflib
import json
import os
import re
import sys
from pathlib import Path
from typing import Any, Optional

from . import _native
from .errors import UsageError
from .progress import Events, in_main_thread
from .wording import python_errors

TABLES = json.loads(_native.tables())

# The extension module starts the helper that prepares data with this interpreter.
os.environ.setdefault("LAYERPRESS_PYTHON", sys.executable)
_SEPARATORS = re.compile(r",(?![^{(\[]*[})\]])")  # not the commas inside a pattern's brackets
_HELPER = Path(__file__).resolve().parent / "share" / "layerpress" / "python" / "prepare.py"
if _HELPER.exists():
    os.environ.setdefault("LAYERPRESS_HELPER", str(_HELPER))


def option_names(function: str) -> dict[str, str]:
    """The options of a function: Python's name to the command line's."""
    return {option["name"].replace("-", "_"): option["name"] for option in TABLES[function]}


def unknown_keyword(function: str, name: str, known) -> UsageError:
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f" (did you mean {nearest[0]}?)" if nearest else ""
    return UsageError(f"[python.{function}] {name}: there is no such argument{hint}")


def options_of(function: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Options by the names of the command line; None stands for an option that is not given."""
    names = option_names(function)
    for name in keywords:
        if name not in names:
            raise unknown_keyword(function, name, names)
    return {names[name]: _plain(value, function, name) for name, value in keywords.items() if value is not None}


def scalar(value: Any) -> Any:
    """A number of numpy as Python's."""
    return value.item() if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0 else value


def _plain(value: Any, function: str, name: str) -> Any:
    """Paths as text, a list as on the command line taken apart, dtypes as words."""
    value = scalar(value)
    kind = next(option["type"] for option in TABLES[function] if option["name"].replace("-", "_") == name)
    if kind == "list[str]":
        return _SEPARATORS.split(value) if isinstance(value, str) else [str(entry) for entry in value]
    if kind == "str" and not isinstance(value, str):
        return str(value).removeprefix("torch.")
    return value


_threads_of: Optional[int] = None  # the process whose threads have computed something


def call(function, *arguments: Any, progress: bool, last: tuple = ()) -> Any:
    """Runs a long function of the extension module; its result is JSON."""
    global _threads_of
    if _threads_of not in (None, os.getpid()):  # they are not there in a fork, which would wait for them forever
        raise UsageError("[python] this process was forked from one that had called layerpress before; start it with "
                         'multiprocessing.get_context("spawn")')
    _threads_of = os.getpid()
    events = Events(progress)
    try:
        with python_errors():
            return json.loads(function(*arguments, events, in_main_thread(), *last))
    finally:
        events.close()
