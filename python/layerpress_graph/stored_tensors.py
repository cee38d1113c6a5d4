"""Names, shapes and dtypes of a checkpoint's tensors. No tensor is read."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from .errors import ExportError

_MOST_HEADER = 512 << 20


def stored_tensors(folder: Path, given: dict) -> dict[str, tuple[str, list[int]]]:
    """{name: (safetensors' dtype, shape)}: what is `given`, where the program sees other tensors than the files have (weights
    that are stored quantized), else what the files have."""
    if given:
        try:
            return {name: (str(dtype), [int(size) for size in shape]) for name, (dtype, shape) in given.items()}
        except (TypeError, ValueError):
            raise ExportError("request field 'tensors' must map names to a dtype and a shape") from None
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, entry in _header(path).items():
            if name != "__metadata__":
                found[name] = (str(entry["dtype"]), [int(size) for size in entry["shape"]])
    if not found:
        raise ExportError(f"{folder}: contains no *.safetensors files; convert the checkpoint to safetensors")
    return found


def _header(path: Path) -> dict:
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if size > min(_MOST_HEADER, path.stat().st_size):
            raise ExportError(f"{path}: the header is damaged; fetch the file again")
        return json.loads(file.read(size))
