"""The validated fields of the JSON request."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import ExportError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class Request:
    """Has the field names and defaults of the JSON object."""

    model: str
    dtype: str
    cache: str = ""
    trust_remote_code: bool = False
    tensors: dict = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return Path(self.model)

    @property
    def cache_folder(self) -> Path:
        """Where graphs are kept between runs."""
        if self.cache:
            return Path(self.cache)
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        return Path(base) / "layerpress" / "graphs"


def parse_request(values: dict[str, Any]) -> Request:
    """Checks the request; raises ExportError for anything else, including unknown fields."""
    known = {each.name: {"str": str, "bool": bool, "dict": dict}[str(each.type)] for each in fields(Request)}
    if not {"model", "dtype"} <= values.keys():
        raise ExportError("the request lacks model or dtype")
    for name, value in values.items():
        if name not in known:
            raise ExportError(f"unknown request field '{name}': the fields are {', '.join(known)}")
        if type(value) is not known[name]:
            raise ExportError(f"request field '{name}' must be of type {known[name].__name__}")
    request = Request(**values)
    if request.dtype not in DTYPES:
        raise ExportError(f"request field 'dtype' is '{request.dtype}': it must be one of {', '.join(DTYPES)}")
    if not (request.folder / "config.json").is_file():
        raise ExportError(f"model '{request.model}' has no config.json: pass a checkpoint directory")
    return request
