"""The program: reads the request, draws the page, writes it."""

from __future__ import annotations

import importlib.util
import json
import os
import traceback
from pathlib import Path
from typing import Any, BinaryIO, TextIO


class ReportError(Exception):
    """An expected kind of fault. The text says what, where and what to do."""


def main(request_stream: BinaryIO, output: TextIO, diagnostics: TextIO) -> int:
    """Returns the exit code: 0 for success, 1 for failure, after exactly one line on `diagnostics`."""
    try:
        request = json.loads(request_stream.read())
        ACTIONS[request["action"]](request)
    except (ReportError, OSError) as fault:
        print(f"error: [report] {' '.join(str(fault).split())}", file=diagnostics)
        return 1
    except KeyboardInterrupt:
        print("error: [report] interrupted", file=diagnostics)
        return 1
    except Exception as fault:
        frame = traceback.extract_tb(fault.__traceback__)[-1]
        text = " ".join(str(fault).split())[:400]
        print(f"error: [report] {type(fault).__name__} at {Path(frame.filename).name}:{frame.lineno}: {text}", file=diagnostics)
        return 1
    print(json.dumps({"report": request["output"]}), file=output, flush=True)
    return 0


def check(request: dict[str, Any]) -> None:
    """What can be known before a run."""
    path = Path(request["output"])
    if importlib.util.find_spec("vl_convert") is None:
        raise ReportError(f"{path}: the Python package 'vl-convert-python' draws its charts: install it with: pip install vl-convert-python")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise ReportError(f"{path}: is a folder or lies in none; name a file in a folder that is there")


def draw(request: dict[str, Any]) -> None:
    from .page import page

    check(request)
    target = Path(request["output"])
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        unfinished.write_text(page(request["summary"], request.get("evaluation")), encoding="utf-8")
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


def check_page(request: dict[str, Any]) -> None:
    """What can be known before an evaluation."""
    check(request)
    drawn_summary(Path(request["output"]))


def evaluate(request: dict[str, Any]) -> None:
    """Draws a page again, with the figures of an evaluation."""
    draw({**request, "summary": drawn_summary(Path(request["output"]))})


def drawn_summary(path: Path) -> dict[str, Any]:
    """The figures that a page was drawn from."""
    from .page import figures_of

    try:
        return figures_of(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ReportError(f"{path}: there is no such page; oneshot --report draws it") from None
    except ValueError:
        raise ReportError(f"{path}: is no page that oneshot --report has drawn; name one") from None


ACTIONS = {"check": check, "draw": draw, "check_page": check_page, "evaluate": evaluate}
