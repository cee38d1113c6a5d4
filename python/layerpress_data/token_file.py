"""Writes the token file: one safetensors file with all token ids and the start of each sample."""

from __future__ import annotations

import os
import tempfile
from array import array
from itertools import accumulate, chain
from pathlib import Path
from typing import Optional, Sequence

from .errors import PrepareError, one_line
from .given_embeddings import given_tensors
from .pixel_spool import PixelSpool, save_tensors

FORMAT = "layerpress.calibration.v1"
FORMAT_WITH_IMAGES = "layerpress.calibration.v2"
FORMAT_WITH_EMBEDDINGS = "layerpress.calibration.v3"


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
    except Exception as fault:  # safetensors reports a full disk with a class of its own
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
