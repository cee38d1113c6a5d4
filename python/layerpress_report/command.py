"""Executes a request: draws the page, writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from layerpress_frame.faults import Fault
from layerpress_frame.program import Report

from .page import figures_of, page


def answer(request: dict[str, Any], report: Report) -> dict[str, Any]:
    place = Path(os.path.realpath(request["output"]))  # a link stays
    try:
        ACTIONS[request["action"]](place, request)
    except OSError as fault:
        raise Fault(f"{place}: {fault.strerror or fault}") from None
    return {"report": str(place)}


def draw(place: Path, request: dict[str, Any]) -> None:
    if request.get("replaces") == "pages" and place.exists():
        drawn_summary(place)
    text = page(request["summary"], request.get("evaluation"), Path(request["charts"]).read_text(encoding="utf-8"))
    unfinished = place.with_name(f".{place.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        os.replace(unfinished, place)
    finally:
        unfinished.unlink(missing_ok=True)


def check_page(place: Path, request: dict[str, Any]) -> None:
    """What can be known before an evaluation."""
    drawn_summary(place)


def evaluate(place: Path, request: dict[str, Any]) -> None:
    """Draws a page again, with the figures of an evaluation."""
    draw(place, {**request, "summary": drawn_summary(place)})


def drawn_summary(path: Path) -> dict[str, Any]:
    """The figures that a page was drawn from."""
    try:
        return figures_of(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Fault(f"{path}: no such file; oneshot --report writes it") from None
    except ValueError:
        raise Fault(f"{path}: was not written by oneshot --report; name a page that was") from None


ACTIONS = {"draw": draw, "check_page": check_page, "evaluate": evaluate}
