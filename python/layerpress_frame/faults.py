"""The faults that a helper reports in one line, without access tokens."""

from __future__ import annotations

import os
import re
import sys
import traceback


class Fault(Exception):
    """An expected kind of fault. The text says where, what and what to do. `place` replaces the helper's name in the line."""

    exit_code = 1

    def __init__(self, text: str, place: str = ""):
        super().__init__(text)
        self.place = place


class RequestFault(Fault):
    """The request on stdin is at fault."""

    exit_code = 2


def one_line(fault: object, limit: int = 400) -> str:
    """Joins a message that may span lines into one, cut to `limit` characters."""
    text = " ".join(str(fault).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def error_line(place: str, fault: BaseException) -> str:
    """The line that the program which asked shows to its user."""
    if isinstance(fault, Fault):
        place, text = fault.place or place, str(fault)
    elif isinstance(fault, KeyboardInterrupt):
        text = "interrupted"
    else:
        text = _unforeseen(fault)
    return f"error: [{place}] {one_line(without_tokens(text), 2000)}"


def without_tokens(text: str) -> str:
    """Libraries may quote a request with its headers."""
    for token in _known_tokens():
        text = text.replace(token, "***")
    return re.sub(r"\b(hf|api_org)_[A-Za-z0-9]{8,}", "***", text)


def _known_tokens() -> list[str]:
    tokens = [os.environ.get("HF_TOKEN"), os.environ.get("HUGGING_FACE_HUB_TOKEN")]
    hub = sys.modules.get("huggingface_hub")  # only a library that is loaded can have read the file with the token
    if hub is not None:
        try:
            tokens.append(hub.get_token())
        except Exception:  # a damaged token file must not hide the fault that is reported
            pass
    return [token.strip() for token in tokens if token and token.strip()]


def _unforeseen(fault: BaseException) -> str:
    frame = traceback.extract_tb(fault.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return f"{type(fault).__name__} at {place}: {one_line(fault) or 'no message'}: please report this"
