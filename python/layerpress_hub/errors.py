"""What the faults of the hub's client and of the network mean."""

from __future__ import annotations

import time
from typing import Any, Callable, Optional

from layerpress_frame.faults import one_line

# Answers after which the same request may succeed, and how long to wait before it, in seconds, unless the hub names a time.
_BUSY = (429, 502, 503, 504)
_WAITS = (1, 2, 4, 8, 16)
_LONGEST_WAIT = 300

LOG_IN = "log in with: hf auth login (or set HF_TOKEN)"


def explained(fault: Exception, missing: str) -> str:
    """What a fault of huggingface_hub or of the network means. `missing` stands for a repository that the hub does not show."""
    from huggingface_hub import errors

    fault_of_client = errors.HfHubHTTPError.__bases__[0]  # HTTPError of httpx, or of httpx2 since huggingface_hub 2
    if isinstance(fault, errors.GatedRepoError):
        return f"access to it is restricted; accept its terms on its page, then {LOG_IN}"
    if isinstance(fault, errors.RepositoryNotFoundError):
        return missing
    if isinstance(fault, errors.RevisionNotFoundError):
        return "the hub has no such revision of it"
    if isinstance(fault, errors.LocalTokenNotFoundError):
        return f"no access token is there; {LOG_IN}"
    if isinstance(fault, errors.HfHubHTTPError) and fault.response is not None:
        return _answer(fault.response.status_code, fault.server_message or "")
    if isinstance(fault, errors.OfflineModeIsEnabled):
        return "HF_HUB_OFFLINE is set; unset it"
    if isinstance(fault, (fault_of_client, ConnectionError)):
        return f"the connection to the hub failed ({type(fault).__name__}: {one_line(fault)})"
    if "force_download" in str(fault):  # an option of huggingface_hub's
        return one_line(fault).split(" This is usually")[0]
    cause = fault.__cause__
    if isinstance(cause, Exception):
        return f"{one_line(fault)} {explained(cause, missing)}"
    return one_line(fault)


def patiently(call: Callable[[], Any]) -> Any:
    """The result of a call of the hub's client, which is repeated as long as the hub is busy: hours of work may depend on it."""
    for wait in _WAITS:
        try:
            return call()
        except Exception as fault:  # of the hub's client and of the network
            response = _response_of(fault)
            if response is None or response.status_code not in _BUSY:
                raise
            asked = response.headers.get("Retry-After") or ""
            time.sleep(min(int(asked), _LONGEST_WAIT) if asked.isdecimal() else wait)
    return call()


def _response_of(fault: Optional[BaseException]) -> Any:
    """The hub's answer that a fault, or what caused it, is about; None: it is about something else."""
    from huggingface_hub import errors

    while fault is not None and not isinstance(fault, errors.HfHubHTTPError):
        fault = fault.__cause__
    return None if fault is None else fault.response


def strange_answer(why: object) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT} does not answer as a hub does ({one_line(why)}); check HF_ENDPOINT, and proxies that ask for a login"


def _answer(status: int, message: str) -> str:
    text = f"the hub answered {status}" + (f" ({one_line(message)})" if message else "")
    if status == 401:
        return f"{text}: the access token is not valid; {LOG_IN}"
    if status == 403:
        return f"{text}; if the access token does not permit this, {LOG_IN}"
    return text
