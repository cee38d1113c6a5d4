"""What a vision part gives a language model for a sample, and the tensors of token files that hold it."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Sequence

from .pixel_spool import PixelSpool


class GivenEmbeddings(NamedTuple):
    """The places of the image tokens, their embeddings (a torch tensor [places, features], or its number in a spool), int64
    positions [axes, tokens], or None where these count from 0, and what layers add to the hidden state at these places (a torch
    tensor [places, layers, features], or its number), or None; and int64 groups [tokens]: tokens with one number attend to each
    other, those with -1 to earlier ones only, as all do with None."""

    places: list[int]
    values: Any
    positions: Any
    added: Any = None
    groups: Any = None

    def cut(self, length: int) -> GivenEmbeddings:
        """Those of the first `length` tokens."""
        places = [place for place in self.places if place < length]
        positions = None if self.positions is None else self.positions[:, :length]
        added = None if self.added is None else self.added[: len(places)]
        groups = None if self.groups is None else self.groups[:length]
        return GivenEmbeddings(places, self.values[: len(places)], positions, added, groups)


def spooled(given: GivenEmbeddings, spool: PixelSpool) -> Optional[GivenEmbeddings]:
    """The same with the features in the spool, in their own dtype; None if no place is left."""
    if not given.places:
        return None
    added = None if given.added is None else _stored(given.added, spool, "added_embeddings")
    return given._replace(values=_stored(given.values, spool, "embeddings"), added=added)


def _stored(features, spool: PixelSpool, kind: str) -> int:
    import torch

    halves = {torch.bfloat16: "BF16", torch.float16: "F16"}
    element = halves.get(features.dtype, "F32")
    values = features.contiguous()
    array = values.view(torch.uint16) if element != "F32" else values.to(torch.float32)
    return spool.add(array.numpy(), kind, element)


def given_tensors(samples: Sequence[Sequence[int]]) -> dict:
    """The tensors beside the values; `given` of a sample as in samples.Illustrated. Empty if no sample has embeddings."""
    found = [getattr(sample, "given", None) for sample in samples]
    places = [[] if given is None else given.places for given in found]
    if not any(places):
        return {}
    import numpy  # most of the helper's start

    tensors = {"embedding_offsets": numpy.cumsum([0, *map(len, places)], dtype=numpy.int64),
               "embedding_places": numpy.concatenate([numpy.asarray(each, dtype=numpy.int64) for each in places])}
    axes = {given.positions.shape[0] for given in found if given is not None and given.positions is not None}
    if axes:
        counted = [numpy.broadcast_to(numpy.arange(len(sample)), (max(axes), len(sample))) for sample in samples]
        own = [None if given is None else given.positions for given in found]
        tensors["positions"] = numpy.concatenate([plain if one is None else one for one, plain in zip(own, counted)], 1)
    groups = [None if given is None else given.groups for given in found]
    if any(one is not None for one in groups):
        causal = [numpy.full(len(sample), -1, dtype=numpy.int64) for sample in samples]
        tensors["attention_groups"] = numpy.concatenate([plain if one is None else one for one, plain in zip(groups, causal)])
    return tensors
