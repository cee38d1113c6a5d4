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
_ELEMENT_NAMES = {"f": "F32", "l": "I64", "q": "I64", "i": "I32", "B": "U8"}  # by the formats of Python's buffers
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

    def places(self) -> list[tuple[str, str, tuple[int, ...]]]:
        """Name, element and shape of each array in the file."""
        return self._places

    def copy_to(self, output: BinaryIO) -> None:
        assert self._file is not None  # there are images
        self._file.seek(0)
        shutil.copyfileobj(self._file, output, _COPIED_AT_ONCE)


def save_tensors(path: str, tensors: dict, metadata: dict[str, str], spool: Optional[PixelSpool]) -> None:
    """Writes `tensors`, which offer their memory, and all arrays of a spool as one safetensors file."""
    # Ordered by element size, so that every tensor is aligned; arrays have 4 or 2 bytes.
    ordered = sorted(((name, memoryview(tensor)) for name, tensor in tensors.items()), key=lambda entry: -entry[1].itemsize)
    wide = [entry for entry in ordered if entry[1].itemsize >= 4]
    narrow = [entry for entry in ordered if entry[1].itemsize < 4]

    def places_of(some: list[tuple[str, memoryview]]) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(name, _ELEMENT_NAMES[memory.format], memory.shape or ()) for name, memory in some]

    places = places_of(wide) + (spool.places() if spool else []) + places_of(narrow)
    with open(path, "wb") as output:
        output.write(_header(places, metadata))
        for _, memory in wide:
            output.write(memory.tobytes())
        if spool:
            spool.copy_to(output)
        for _, memory in narrow:
            output.write(memory.tobytes())


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
