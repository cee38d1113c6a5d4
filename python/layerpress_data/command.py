"""Executes a request: prepares the samples, writes the token file, returns the summary."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, Optional

from layerpress_frame.program import Report

from .errors import DataError
from .request import Request, parse_request


def answer(request: dict[str, Any], report: Report) -> dict[str, Any]:
    if "decode" in request:
        return decode(request)
    if "continuations" in request:
        from .continuations import answer as continuations

        return continuations(request, report)
    if "image_writers" in request:
        return image_writers(request)
    return prepare(parse_request(request))


def decode(request: dict[str, Any]) -> dict[str, list[str]]:
    """The texts of token ids."""
    from .checkpoint_tokenizer import load_tokenizer

    model, sequences = request.get("model"), request["decode"]
    if not isinstance(model, str) or not isinstance(sequences, list):
        raise DataError("request field 'decode' must be lists of token ids, beside 'model'")
    tokenizer = load_tokenizer(Path(model))
    return {"texts": [tokenizer.decode(ids) for ids in sequences]}


def image_writers(request: dict[str, Any]) -> dict[str, list[str]]:
    """The weights of a checkpoint's vision part that write embeddings."""
    from .image_writers import answer as found

    if not isinstance(request["image_writers"], str):
        raise DataError("request field 'image_writers' must be a folder")
    return found(Path(request["image_writers"]))


def prepare(request: Request) -> dict[str, int]:
    """Executes `request` and returns the summary."""
    from .dataset import open_dataset
    from .samples import collect_samples, selected_rows
    from .token_file import write_token_file

    source, split = open_dataset(request)
    tokenizer = _Tokenizer(request.model_directory)
    images = _images(request)
    samples = collect_samples(selected_rows(source, split, request), source, tokenizer, request, images)
    if not samples.tokens and request.rows is None:
        raise DataError(_nothing_left(request, samples.skipped_empty))
    summary = {
        "samples": len(samples.tokens),
        "tokens": write_token_file(
            Path(request.output), samples.tokens, images.spool if images and len(images.spool) else None
        ),
        "skipped_empty": samples.skipped_empty,
    }
    if tokenizer.cut_to is not None:
        summary["cut_to"] = tokenizer.cut_to
    if request.rows is not None:
        return {**summary, "rows": samples.rows}
    return {**summary, "requested": request.num_samples}


class _Tokenizer:
    """The checkpoint's, loaded when the first text arrives: rows of token ids need none."""

    def __init__(self, directory: Path):
        self._directory = directory

    @cached_property
    def _loaded(self):
        from .checkpoint_tokenizer import load_tokenizer

        return load_tokenizer(self._directory)

    @property
    def cut_to(self) -> Optional[int]:
        """The tokenizer's own limit, if it has cut texts."""
        return self._loaded.limit.cut_to if "_loaded" in vars(self) else None

    def __getattr__(self, name: str):
        return getattr(self._loaded, name)


def _images(request: Request):
    """The tools for samples with images; None for a model without images."""
    if not request.image_columns:
        return None
    from .pixel_spool import PixelSpool
    from .samples import Images
    from .vision_processor import VisionProcessor, image_token

    directory = request.model_directory
    spool = PixelSpool(Path(request.output).parent)
    return Images(VisionProcessor(directory), request.dataset_folder, spool, image_token(directory))


def _nothing_left(request: Request, skipped: int) -> str:
    where = f"{request.dataset} (split '{request.split}')"
    if request.concatenate:
        return f"{where}: all rows together give fewer than max_seq_length = {request.max_seq_length} tokens: lower it"
    if skipped:
        return f"{where}: all {skipped} rows are empty: pass a dataset with text"
    return f"{where}: the dataset has no rows: pass another dataset or split"
