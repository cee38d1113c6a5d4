"""Keeps the pixels or the embeddings of all images in a temporary file until the token file is written, because they exceed
memory."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO, Optional, Sequence

from .errors import PrepareError, one_line

_COPIED_AT_ONCE = 16 << 20
_ELEMENT_NAMES = {"float32": "F32", "int64": "I64", "int32": "I32", "uint8": "U8"}
_SIZES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1}


class PixelSpool:
    """An unnamed temporary file in the output's folder."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._file: Optional[BinaryIO] = None  # made for the first image
        self._places: list[tuple[str, str, tuple[int, ...]]] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, pixels, kind: str = "pixel_values", element: str = "F32") -> int:
        """Stores an array with elements of this name in safetensors as the tensor `<kind>.<number>`; returns the number."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._folder)
            self._file.write(pixels.data)
        except OSError as fault:
            raise PrepareError(
                f"{self._folder}: cannot hold the pixels of images ({one_line(fault)}): check the folder and its space"
            ) from None
        number = sum(name.startswith(kind + ".") for name, _, _ in self._places)
        self._places.append((f"{kind}.{number}", element, pixels.shape))
        return number

    def save(self, path: str, tensors: dict, metadata: dict[str, str]) -> None:
        """Writes `tensors` and all arrays as one safetensors file."""
        # Ordered by element size, so that every tensor is aligned; arrays have 4 or 2 bytes.
        ordered = dict(sorted(tensors.items(), key=lambda entry: -entry[1].itemsize))
        wide = {name: tensor for name, tensor in ordered.items() if tensor.itemsize >= 4}
        narrow = {name: tensor for name, tensor in ordered.items() if tensor.itemsize < 4}
        places = [(name, _ELEMENT_NAMES[tensor.dtype.name], tensor.shape) for name, tensor in wide.items()]
        places += self._places
        places += [(name, _ELEMENT_NAMES[tensor.dtype.name], tensor.shape) for name, tensor in narrow.items()]
        with open(path, "wb") as output:
            output.write(_header(places, metadata))
            for tensor in wide.values():
                output.write(tensor.tobytes())
            assert self._file is not None  # there are images
            self._file.seek(0)
            shutil.copyfileobj(self._file, output, _COPIED_AT_ONCE)
            for tensor in narrow.values():
                output.write(tensor.tobytes())


def _header(places: Sequence[tuple[str, str, tuple[int, ...]]], metadata: dict[str, str]) -> bytes:
    entries: dict = {"__metadata__": metadata}
    begin = 0
    for name, element, shape in places:
        size = _SIZES[element]
        for extent in shape:
            size *= extent
        offsets = [begin, begin + size]
        entries[name] = {"dtype": element, "shape": list(shape), "data_offsets": offsets}
        begin += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
