"""Keeps the pixels or the embeddings of all images in a temporary file until the token file is written, because they exceed
memory."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import BinaryIO, Optional

from .errors import PrepareError, one_line

_COPIED_AT_ONCE = 16 << 20


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
        """Writes the arrays one after the other, in the order of places()."""
        assert self._file is not None  # there are images
        self._file.seek(0)
        shutil.copyfileobj(self._file, output, _COPIED_AT_ONCE)
