"""Writes the token file: one safetensors file with all token ids and where each sample starts."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Sequence

from .errors import PrepareError, one_line

FORMAT = "layerpress.calibration.v1"


def write_token_file(path: Path, samples: Sequence[Sequence[int]]) -> int:
    """Writes `input_ids` int32 [tokens] and `sample_offsets` int64 [samples + 1]; returns the number of tokens.

    The file appears under its name only when it is complete.
    """
    import numpy

    offsets = numpy.zeros(len(samples) + 1, dtype=numpy.int64)
    numpy.cumsum([len(sample) for sample in samples], dtype=numpy.int64, out=offsets[1:])
    tokens = numpy.empty(int(offsets[-1]), dtype=numpy.int32)
    for sample, start in zip(samples, offsets):
        tokens[start : start + len(sample)] = sample
    metadata = {"format": FORMAT, "samples": str(len(samples)), "tokens": str(len(tokens))}
    try:
        _save_then_rename(path, {"input_ids": tokens, "sample_offsets": offsets}, metadata)
    except Exception as fault:  # safetensors reports a full disk with a class of its own
        raise PrepareError(
            f"{path}: cannot write the token file ({one_line(fault)}): check the folder and its space"
        ) from None
    return len(tokens)


def _save_then_rename(path: Path, tensors: dict, metadata: dict[str, str]) -> None:
    from safetensors.numpy import save_file

    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    os.close(handle)
    try:
        save_file(tensors, temporary, metadata=metadata)
        # mkstemp makes the file private; give it the mode that a plain open() would have given.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
