"""Names, shapes and dtypes of a checkpoint's tensors."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from .errors import ExportError

_MOST_HEADER = 512 << 20
_ROWS = 4096  # that are compared at once


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


def same_values(folder: Path, first: str, second: str, stored: dict) -> bool:
    """Whether two tensors are equal. Of what the files do not have under these names nothing is known, and it counts as equal."""
    from safetensors import safe_open

    if stored[first][1] != stored[second][1]:
        return False
    files: dict[str, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        files |= {name: path for name in _header(path) if name in (first, second)}
    if len(files) < 2:
        return True
    rows = stored[first][1][0]
    with safe_open(files[first], "pt") as one, safe_open(files[second], "pt") as other:
        slices = one.get_slice(first), other.get_slice(second)
        return all(slices[0][row:row + _ROWS].equal(slices[1][row:row + _ROWS].to(slices[0][row:row + 1].dtype)) for row in range(0, rows, _ROWS))


def _header(path: Path) -> dict:
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if size > min(_MOST_HEADER, path.stat().st_size):
            raise ExportError(f"{path}: the header is damaged; fetch the file again")
        return json.loads(file.read(size))
