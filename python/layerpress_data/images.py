"""Finds the images of a row and opens them."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence
from urllib.parse import unquote, urlsplit

from .errors import DataError, MissingPackageError, one_line

IMAGE_COLUMNS = ("image", "images")


def holds_something(value: Any) -> bool:
    """Whether a column is filled: not null, an empty text (CSV has no null), or a list of such."""
    if isinstance(value, (list, tuple)):
        return any(holds_something(each) for each in value)
    return value is not None and not (isinstance(value, str) and not value)


def unread_columns(sound: bool, images: bool) -> tuple[str, ...]:
    """Columns with sound or videos of a model that takes sound or images; nothing here reads them."""
    return (*(("audio", "audios") if sound else ()), *(("video", "videos") if images else ()))


def row_images(place: str, row: Mapping[str, Any]) -> list:
    """The content of `image` or `images`, whichever is not null: file names, bytes, or decoded images."""
    filled = [name for name in IMAGE_COLUMNS
              if row.get(name) is not None and not (isinstance(row[name], str) and not row[name])]  # CSV has no null
    if not filled:
        return []
    if len(filled) > 1:
        raise DataError(f"{place}: 'image' and 'images' both hold images: put all of them into 'images'")
    value = row[filled[0]]
    images = list(value) if isinstance(value, (list, tuple)) else [value]
    if any(image is None for image in images):
        raise DataError(f"{place}: '{filled[0]}' holds null: remove it or the row")
    return images


def message_images(messages: list[dict], images: Sequence) -> list:
    """The images of messages, in order: those in their parts, and those of the row for parts without one."""
    rest, found = list(images), []
    for part in image_parts(messages):
        own = next((part[key] for key in ("image", "path", "url") if part.get(key) is not None), None)
        if own is not None:
            found.append(own)
        elif rest:
            found.append(rest.pop(0))
    return found + rest


def image_parts(messages: list[dict]) -> list[dict]:
    """The image parts of the messages' contents."""
    contents = (message.get("content") for message in messages)
    parts = (part for content in contents if isinstance(content, (list, tuple)) for part in content)
    return [part for part in parts if isinstance(part, dict) and part.get("type") == "image"]


def open_image(place: str, image: Any, folder: Optional[Path]):
    """Returns a completely loaded PIL image. File names are relative to `folder`."""
    try:
        from PIL import Image
    except ImportError as fault:
        raise MissingPackageError("pillow", "reading images", fault) from None
    if isinstance(image, Image.Image):
        return _loaded(place, "an image of the dataset", image)
    if isinstance(image, Mapping):
        if image.get("bytes") is not None:
            image = image["bytes"]
        elif image.get("path") is not None:
            image = image["path"]
    if isinstance(image, (bytes, bytearray)):
        return _opened(place, f"an image of {len(image)} bytes", BytesIO(image), Image)
    if not isinstance(image, str):
        raise DataError(f"{place}: an image is {type(image).__name__}: pass file names, bytes or decoded images")
    if image.startswith("file://"):
        image = unquote(urlsplit(image).path)
    if "://" in image or image.startswith("data:"):
        raise DataError(f"{place}: image '{image[:80]}' is not a file: fetch it and pass the file's name")
    path = Path(image) if folder is None else folder / image
    if folder is not None and not Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder)):
        raise DataError(f"{place}: image '{path}' is outside the dataset's folder: move it there, or link its folder there")
    if not path.is_file():
        raise DataError(f"{place}: image '{path}': no such file: names are relative to the dataset's folder")
    return _opened(place, f"image '{path}'", path, Image)


def _opened(place: str, name: str, source, image_module):
    try:
        return _loaded(place, name, image_module.open(source))
    except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as fault:
        raise _unreadable(place, name, fault) from None


def _loaded(place: str, name: str, image):
    from PIL import ImageOps

    try:
        image.load()
        image = ImageOps.exif_transpose(image)  # as cameras want it, and as transformers and datasets show it
    except Exception as fault:  # decoders raise many kinds
        raise _unreadable(place, name, fault) from None
    if min(image.size) < 1:
        raise DataError(f"{place}: {name} has no pixels: repair or remove the row")
    return image


def _unreadable(place: str, name: str, fault: Exception) -> DataError:
    return DataError(f"{place}: {name} cannot be read ({one_line(fault, 200)}): repair or remove the row")
