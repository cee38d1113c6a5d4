"""Writes the token file: one safetensors file with all token ids and the start of each sample."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from itertools import accumulate, chain
from pathlib import Path
from typing import Optional, Sequence

from .errors import PrepareError, one_line
from .given_embeddings import given_tensors
from .pixel_spool import PixelSpool

FORMAT = "layerpress.calibration.v1"
FORMAT_WITH_IMAGES = "layerpress.calibration.v2"
FORMAT_WITH_EMBEDDINGS = "layerpress.calibration.v3"

_ELEMENT_NAMES = {"f": "F32", "l": "I64", "q": "I64", "i": "I32", "B": "U8"}  # by the formats of Python's buffers
_SIZES = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8, "I32": 4, "U8": 1}


def write_token_file(path: Path, samples: Sequence[Sequence[int]], spool: Optional[PixelSpool] = None) -> int:
    """Writes `input_ids` int32 [tokens] and `sample_offsets` int64 [samples + 1], `loss_mask` uint8 [tokens] where samples are
    masked, and with a spool the images, or their embeddings, of the samples that have some; returns the number of tokens.

    The file appears under its name only when it is complete.
    """
    tokens = array("i")  # numpy would be most of the helper's start
    for sample in samples:
        tokens.extend(sample)
    offsets = array("q", accumulate((len(sample) for sample in samples), initial=0))
    tensors: dict = {"input_ids": tokens, "sample_offsets": offsets}
    masks = [sample.mask for sample in samples if hasattr(sample, "mask")]
    if masks:
        tensors["loss_mask"] = array("B", chain.from_iterable(masks))
    given = given_tensors(samples)
    if spool is not None:
        tensors |= given or _image_tensors(samples)
    metadata = {
        "format": FORMAT if spool is None else FORMAT_WITH_EMBEDDINGS if given else FORMAT_WITH_IMAGES,
        "samples": str(len(samples)),
        "tokens": str(len(tokens)),
    }
    try:
        _save_then_rename(path, tensors, metadata, spool)
    except OSError as fault:
        raise PrepareError(
            f"{path}: cannot write the token file ({one_line(fault)}): check the folder and its space"
        ) from None
    return len(tokens)


def _image_tensors(samples: Sequence[Sequence[int]]) -> dict:
    """The tensors of images other than pixels; `images` of a sample as in samples.Illustrated."""
    import numpy

    images = [getattr(sample, "images", None) for sample in samples]
    there = [one for one in images if one is not None]
    counts = [0 if one is None else len(one.ratios) for one in images]
    return {
        "image_offsets": numpy.cumsum([0, *counts], dtype=numpy.int64),
        "aspect_ratio_ids": numpy.array([ratio for one in there for ratio in one.ratios], dtype=numpy.int64),
        "aspect_ratio_mask": numpy.concatenate([one.filled for one in there]),
        "cross_attention_mask": numpy.concatenate([one.mask.reshape(-1, one.mask.shape[2]) for one in there]),
    }


def _save_then_rename(path: Path, tensors: dict, metadata: dict[str, str], spool: Optional[PixelSpool]) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    try:
        save_tensors(temporary, tensors, metadata, spool)
        # mkstemp makes the file private; give it the mode that a plain open() would have given.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


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
