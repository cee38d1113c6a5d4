"""Calibration data with images or sound that is in Python: rows whose images a processor still has to read, and rows whose images or
sound it has read already. A model in memory embeds them itself."""

from __future__ import annotations

import contextlib
import json
from itertools import islice
from pathlib import Path
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Optional

from .errors import DataError, UsageError
from .helper import import_helper
from .wording import in_python

_OF_SOUND = ("input_features", "feature_attention_mask", "input_features_mask")
# What processors make of images and sound, beside the ids of tokens.
PROCESSED = ("pixel_values", "pixel_values_videos", "image_grid_thw", "aspect_ratio_ids", "image_sizes", "pixel_attention_mask",
             "image_position_ids", *_OF_SOUND)
_OTHER_SOUND = ("audio_values", "input_audio_embeds")
_OF_TOKENS = ("input_ids", "attention_mask", "token_type_ids", "mm_token_type_ids", "cross_attention_mask")
_OTHER = ("labels", "loss_mask", "text")
_IMAGES = ("image", "images")


class ImageReader(NamedTuple):
    """Who reads images: a processor, or the one of the model's folder; and the model's vision part, in memory or in its folder."""

    folder: Path
    processor: Any = None
    model: Any = None
    images: Optional[Path] = None  # to which file names in rows are relative

    @property
    def reads_pixels(self) -> bool:
        """Whether the model's graph has the vision part, which otherwise gives embeddings."""
        config = json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        return config.get("model_type") == "mllama"


def takes_images(config: Any) -> bool:
    """Whether a model with this configuration (a transformers one, or config.json's mapping) has a vision part."""
    values = config if isinstance(config, Mapping) else vars(config)
    return values.get("vision_config") is not None


def takes_sound(config: Any) -> bool:
    """Whether a model with this configuration (a transformers one, or config.json's mapping) has an audio part."""
    values = config if isinstance(config, Mapping) else vars(config)
    return values.get("audio_config") is not None


def is_processed(row: Any) -> bool:
    """Whether a processor has read the row's images or sound already."""
    return hasattr(row, "keys") and any(row.get(name) is not None for name in PROCESSED)


def has_images(row: Any) -> bool:
    """Whether a row names images, or holds what a processor made of images or sound."""
    if not hasattr(row, "keys"):
        return isinstance(row, (list, tuple)) and _in_messages(row)
    if is_processed(row) or any(_is_filled(row.get(name)) for name in _IMAGES):
        return True
    return _in_messages(row.get("messages"))


def _in_messages(messages: Any) -> bool:
    contents = (one.get("content") for one in messages or () if hasattr(one, "get"))
    parts = (part for content in contents if isinstance(content, (list, tuple)) for part in content)
    return any(hasattr(part, "get") and part.get("type") in ("image", "image_url") for part in parts)


def unread_columns(config: Any) -> tuple[str, ...]:
    """Columns with sound or videos that such a model takes and nothing here reads."""
    import_helper()
    from layerpress_data.images import unread_columns as columns_of

    return columns_of(takes_sound(config), takes_images(config))


def _is_filled(value: Any) -> bool:
    import_helper()
    from layerpress_data.images import holds_something

    return holds_something(value)


def refuse_sound(row: Any, number: int, unread: tuple[str, ...] = ()) -> None:
    for name in (*_OTHER_SOUND, *unread):
        if hasattr(row, "keys") and _is_filled(row.get(name)):
            raise DataError(f"[python.dataset] row {number}: {name} holds sound or a video in a form that Layerpress does not calibrate on; "
                            "pass what the model's processor makes of it, or leave it out")


def write_tokens(rows: Iterable[Any], reader: ImageReader, options: dict[str, Any], written: Path) -> Path:
    """Tokenizes rows, some of which have images, into a token file. The options are oneshot()'s."""
    _refuse(options)
    import_helper()
    from layerpress_data.errors import PrepareError
    from layerpress_data.pixel_spool import PixelSpool
    from layerpress_data.token_file import write_token_file

    spool = PixelSpool(written.parent)
    try:
        with _embedder(reader) as embedder:
            samples = list(_samples(_selected(rows, options), reader, embedder, spool, options))
        write_token_file(written, samples, spool if len(spool) else None)
    except PrepareError as fault:
        raise DataError(in_python(f"[data.prepare] {fault}")) from None
    return written


def _refuse(options: dict[str, Any]) -> None:
    for name in ("concatenate", "use_loss_mask"):
        if options.get(name):
            raise UsageError(f"[python.oneshot] {name}: is not possible with rows that have images or sound; leave it out")


def wanted_samples(options: dict[str, Any]) -> Any:
    """How many samples oneshot()'s options ask for."""
    wanted = options.get("num_calibration_samples")
    if wanted is None:
        return 512
    if isinstance(wanted, int) and wanted < 1:
        raise UsageError(f"[python.dataset] the number of samples is {wanted}; it must be positive")
    return wanted


def _selected(rows: Iterable[Any], options: dict[str, Any]) -> Iterator[tuple[int, Any]]:
    """The rows that are wanted, with their numbers from 1."""
    wanted = wanted_samples(options)
    if not options.get("shuffle"):
        return islice(enumerate(rows, start=1), wanted)
    from layerpress_data.order import shuffled_order

    numbered = list(enumerate(rows, start=1))
    return islice((numbered[place] for place in shuffled_order(len(numbered), options.get("seed") or 0)), wanted)


def _samples(rows: Iterator[tuple[int, Any]], reader: ImageReader, embedder: Any, spool: Any, options: dict[str, Any]) -> Iterator[Any]:
    from layerpress_data.samples import Illustrated

    longest = options.get("max_seq_length") or 2048
    plain = _PlainRows(reader, options)
    unread = unread_columns(json.loads((reader.folder / "config.json").read_text(encoding="utf-8")))
    for number, row in rows:
        refuse_sound(row, number, () if is_processed(row) else unread)
        place = f"row {number}"
        if is_processed(row):
            tokens, made = embedder.processed(place, _batch_of_one(place, row))
        elif has_images(row):
            tokens, made = embedder.encode(plain.content(place, row), reader.images)
        else:
            yield plain.tokens(place, row, longest)
            continue
        yield _stored(Illustrated(tokens[:longest]), made, longest, spool)


def _stored(sample: Any, made: Any, longest: int, spool: Any) -> Any:
    """The sample with its images in the spool, as layerpress_data.samples has it."""
    from layerpress_data.given_embeddings import GivenEmbeddings, spooled

    if isinstance(made, GivenEmbeddings):
        sample.given = spooled(made.cut(longest), spool)
    else:
        sample.images = made._replace(pixels=[spool.add(pixels) for pixels in made.pixels], mask=made.mask[:longest])
    return sample


class _PlainRows:
    """Text, messages and token ids, as the helper reads them."""

    def __init__(self, reader: ImageReader, options: dict[str, Any]):
        self._reader, self._column = reader, options.get("text_column") or "text"
        self._tokenizer: Any = None

    def content(self, place: str, row: Any) -> Any:
        from layerpress_data.content import row_content

        values = row if hasattr(row, "keys") else {"messages": list(row)} if isinstance(row, (list, tuple)) else {"text": row}
        return row_content(place, dict(values), self._column, with_images=True)

    def tokens(self, place: str, row: Any, longest: int) -> list[int]:
        from layerpress_data.checkpoint_tokenizer import load_tokenizer
        from layerpress_data.content import Kind

        if hasattr(row, "keys") and row.get("input_ids") is not None:
            return _unbatched(row["input_ids"])[:longest]
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._reader.folder)
        content = self.content(place, row)
        talk = content.kind is Kind.CONVERSATION
        text = self._tokenizer.render(content.value, place) if talk else content.value
        return self._tokenizer.encode([text], longest, not talk)[0]


def _unbatched(ids: Any) -> list[int]:
    import torch

    return torch.as_tensor(ids).reshape(-1).tolist()


def _batch_of_one(place: str, row: Any) -> dict[str, Any]:
    """A row's tensors as the model takes them: with a dimension for the samples, of which there is one."""
    import torch

    given = {name: torch.as_tensor(row[name]) for name in row.keys() if row[name] is not None and name not in _OTHER}
    ids = given.get("input_ids")
    if ids is None:
        raise DataError(f"[python.dataset] {place}: has no input_ids beside {', '.join(given)}; pass what the processor gave as a whole")
    if ids.dim() == 2 and len(ids) > 1:
        raise DataError(f"[python.dataset] {place}: is a batch of {len(ids)} samples with images or sound; pass them one by one")
    if ids.dim() == 1:
        for name in _OF_TOKENS:
            if name in given:
                given[name] = given[name][None]
        for name, axes in (("pixel_values", 3), *((name, 1) for name in _OF_SOUND[1:]), (_OF_SOUND[0], 2)):
            if name in given and given[name].dim() == axes:
                given[name] = given[name][None]
    return given


@contextlib.contextmanager
def _embedder(reader: ImageReader) -> Iterator[Any]:
    """What turns a row with images into tokens and pixels, or embeddings."""
    from layerpress_data.image_embedder import ImageEmbedder
    from layerpress_data.vision_processor import VisionProcessor

    class Embedder(ImageEmbedder):
        def model(self):
            if reader.model is not None:
                self._model = reader.model
            return super().model()

    class Reader(VisionProcessor):
        def __init__(self):
            super().__init__(reader.folder)
            self._processor, self.embedder = _with_images(reader.processor), Embedder(reader.folder)

        def processed(self, place, given):
            if not self._in_graph:
                return self.embedder.embed(place, given)
            arrays = {name: value.float().numpy() if value.is_floating_point() else value.numpy() for name, value in given.items()}
            return self._sample(place, arrays, arrays["aspect_ratio_mask"].shape[1])

    if reader.model is None or reader.reads_pixels:
        yield Reader()
        return
    from layerpress_data.shortened_model import stopped_at_language_model

    with stopped_at_language_model(reader.model):
        yield Reader()


def _with_images(processor: Any) -> Any:
    """The processor, if it reads images; a tokenizer does not."""
    return processor if hasattr(processor, "image_processor") else None


def rows_of_file(name: str, reader: ImageReader, options: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The rows of a file, or of an id of the datasets package."""
    import_helper()
    from layerpress_data.dataset import open_dataset
    from layerpress_data.errors import PrepareError
    from layerpress_data.request import Request
    from layerpress_data.samples import selected_rows

    request = Request(str(reader.folder), name, "", split=options.get("dataset_split") or "train",
                      text_column=options.get("text_column") or "text")
    try:
        source, split = open_dataset(request)
        for row in selected_rows(source, split, request):
            yield row.values
    except PrepareError as fault:
        raise DataError(in_python(f"[data.prepare] {fault}")) from None


def folder_of(model: Any, processor: Any, folder: Path) -> Path:
    """A folder with the processor's files and the config.json of a model in memory."""
    folder.mkdir()
    if processor is not None:
        processor.save_pretrained(folder)
    values = json.loads(model.config.to_json_string())
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder
