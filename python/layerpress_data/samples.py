"""Makes samples from rows: selects rows and cuts samples to length."""

from __future__ import annotations

import sys
from array import array
from itertools import islice
from pathlib import Path
from typing import Iterable, Iterator, NamedTuple, Optional, Sequence

from .content import Content, Kind, row_content
from .errors import DataError
from .given_embeddings import GivenEmbeddings, spooled
from .loss_mask import Masked, checked_mask
from .order import shuffled_order
from .pixel_spool import PixelSpool
from .request import Request
from .row_source import Row, RowSource
from .split import Split
from .vision_processor import SampleImages, VisionProcessor

# Rows tokenized in one call: enough to occupy all cores, few enough to keep their encodings in memory.
_ROWS_PER_CALL = 64


class Illustrated(list):
    """Token ids of a sample with `images`, SampleImages whose pixels are numbers of the spool; or with `given`,
    GivenEmbeddings whose values are one."""

    images: Optional[SampleImages] = None
    given: Optional[GivenEmbeddings] = None


class Images(NamedTuple):
    """The tools for samples with images: the processor, the folder of relative file names, the spool for pixels, and the
    image token, if it is known."""

    processor: VisionProcessor
    folder: Optional[Path]
    spool: PixelSpool
    token: Optional[int]


class Samples(NamedTuple):
    tokens: list[Sequence[int]]
    skipped_empty: int
    rows: int  # how many were read


def selected_rows(source: RowSource, split: Split, request: Request) -> Iterator[Row]:
    """Yields the rows of the slice, in file order or shuffled. It is lazy, so only the consumed rows are read.

    With `request.rows`, those at these positions of that order, as far as they exist.
    """
    first, last = request.rows or (0, None)
    if not request.shuffle and not split.needs_count:
        start = int(split.start or 0)
        bounds = [int(bound) for bound in (split.stop, None if last is None else start + last) if bound is not None]
        return source.rows(start + first, min(bounds, default=None))
    indices = split.rows(source.count())
    if not request.shuffle:
        chosen = indices[first:last]
        return source.rows(chosen.start, chosen.stop)
    return source.pick(indices[i] for i in shuffled_order(len(indices), request.seed)[first:last])


def collect_samples(
    rows: Iterable[Row], source: RowSource, tokenizer, request: Request, images: Optional[Images] = None
) -> Samples:
    """Takes samples until there are enough or no more rows; all named rows if `request.rows` is set.

    Images in rows count where `images` is given.
    """
    contents: Iterator[Content] = (
        row_content(source.place(row), row.values, request.text_column, images is not None, request.unread_columns) for row in rows
    )
    if request.concatenate or request.uncut:
        contents = map(_without_images, contents)
    if request.concatenate:
        return _concatenated(contents, tokenizer, request)
    return _one_per_row(contents, tokenizer, request, images)


def _without_images(content: Content) -> Content:
    if content.illustrated:
        raise DataError(f"{content.place}: concatenate would separate its images from their text: leave it out")
    return content


def _one_per_row(
    contents: Iterator[Content], tokenizer, request: Request, images: Optional[Images] = None
) -> Samples:
    samples: list[Sequence[int]] = []
    skipped = 0
    wanted = sys.maxsize if request.rows is not None else request.num_samples
    while len(samples) < wanted:
        chunk = list(islice(contents, min(_ROWS_PER_CALL, wanted - len(samples))))
        if not chunk:
            break
        encoded = _encode(chunk, tokenizer, None if request.uncut else request.max_seq_length, request.use_loss_mask)
        for i, content in enumerate(chunk):
            if content.illustrated:
                assert images is not None  # content has images only where they count
                encoded[i] = _illustrated(content, request.max_seq_length, images)
            elif images is not None and images.token in encoded[i]:
                raise DataError(f"{content.place}: the text names an image, but the row has none: add the image or remove its name")
        samples += [tokens for tokens in encoded if tokens]
        skipped += sum(not tokens for tokens in encoded)
    return Samples(samples, skipped, len(samples) + skipped)


def _concatenated(contents: Iterator[Content], tokenizer, request: Request) -> Samples:
    length = request.max_seq_length
    wanted = length * request.num_samples
    stream = array("i")
    masks = array("b")  # of the tokens in the stream, with a loss mask
    skipped = 0
    longest = 0
    read = 0
    while len(stream) < wanted:
        # One row at first; then few enough that rows of the lengths seen so far do not overshoot.
        rows = max(1, min(_ROWS_PER_CALL, (wanted - len(stream)) // longest)) if longest else 1
        chunk = list(islice(contents, rows))
        if not chunk:
            break
        for tokens in _encode(chunk, tokenizer, None, request.use_loss_mask):
            stream.extend(tokens)
            masks.extend(getattr(tokens, "mask", ()))
            skipped += not tokens
            longest = max(longest, len(tokens))
        read += len(chunk)
    count = min(request.num_samples, len(stream) // length)
    samples: list[Sequence[int]] = []
    for first in range(0, count * length, length):
        tokens = stream[first : first + length]
        samples.append(Masked(tokens, masks[first : first + length]) if request.use_loss_mask else tokens)
    return Samples(samples, skipped, read)


def _encode(chunk: list[Content], tokenizer, max_length: Optional[int], masked: bool) -> list[Sequence[int]]:
    """Encodes each content without images by its kind; empty content gives no tokens, not even special ones."""
    if masked:
        return _encode_masked(chunk, tokenizer, max_length)
    encoded: list[Sequence[int]] = [()] * len(chunk)
    for kind, add_special_tokens in ((Kind.TEXT, True), (Kind.CONVERSATION, False)):
        positions = [
            i for i, content in enumerate(chunk) if content.kind is kind and content.value and not content.illustrated
        ]
        texts = [_text(chunk[i], tokenizer) for i in positions]
        if texts:
            for i, tokens in zip(positions, tokenizer.encode(texts, max_length, add_special_tokens)):
                encoded[i] = tokens
    for i, content in enumerate(chunk):
        if content.kind is Kind.TOKEN_IDS:
            encoded[i] = array("i", content.value[:max_length])
    return encoded


def _encode_masked(chunk: list[Content], tokenizer, max_length: Optional[int]) -> list[Sequence[int]]:
    """The same, each a Masked."""
    encoded: list[Sequence[int]] = [()] * len(chunk)
    conversations = []
    for i, content in enumerate(chunk):
        if content.illustrated:
            raise DataError(f"{content.place}: has images, which --use-loss-mask does not support yet: leave either out")
        if content.kind is Kind.TEXT and content.value:
            raise DataError(
                f"{content.place}: is plain text, of which nothing is the assistant's: with --use-loss-mask rows have "
                "messages, or input_ids and a loss_mask"
            )
        if content.kind is Kind.TOKEN_IDS:
            mask = checked_mask(content.place, content.loss_mask, content.value)
            encoded[i] = Masked(content.value[:max_length], mask[:max_length])
        elif content.value:
            conversations.append((i, tokenizer.render_marked(content.value, content.place)))
    if conversations:
        marked = tokenizer.encode_marked([rendered for _, rendered in conversations], max_length)
        for (i, _), tokens in zip(conversations, marked):
            encoded[i] = tokens
    return encoded


def _illustrated(content: Content, max_length: int, images: Images) -> Illustrated:
    tokens, made = images.processor.encode(content, images.folder)
    sample = Illustrated(tokens[:max_length])
    if isinstance(made, GivenEmbeddings):
        sample.given = spooled(made.cut(max_length), images.spool)
        return sample
    numbers = [images.spool.add(pixels) for pixels in made.pixels]
    sample.images = made._replace(pixels=numbers, mask=made.mask[:max_length])
    return sample


def _text(content: Content, tokenizer) -> str:
    return tokenizer.render(content.value, content.place) if content.kind is Kind.CONVERSATION else content.value
