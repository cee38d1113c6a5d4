"""Datasets that the `datasets` package opens: ids, its local cache, dataset directories."""

from __future__ import annotations

from pathlib import Path

from .content import lacks_columns, missing_column, wanted_columns
from .errors import DataError, MissingPackageError, one_line
from .request import Request
from .row_source import RowSource, SequenceSource
from .split import Split, parse_split


def open_hub_dataset(request: Request) -> tuple[RowSource, Split]:
    """Opens `id`, `id:configuration` or a directory; `datasets` applies the slice where it supports slices."""
    try:
        import datasets
    except ImportError as fault:
        raise MissingPackageError("datasets", f"dataset '{request.dataset}'", fault) from None
    datasets.disable_progress_bars()
    saved = Path(request.dataset)
    if any((saved / name).is_file() for name in ("state.json", "dataset_dict.json")):
        table, split = _open_saved(datasets, saved, parse_split(request.split))
    else:
        table, split = _load(datasets, request), Split(request.split)
    columns = [name for name in wanted_columns(request.text_column) if name in table.column_names]
    if lacks_columns(request.text_column, table.column_names):
        raise missing_column(f"dataset {request.dataset}", table.column_names, request.text_column)
    columns += [name for name in request.extra_columns if name in table.column_names]
    # Other columns (images, audio) may be expensive to decode.
    return SequenceSource(f"dataset {request.dataset}", table.select_columns(columns)), split


def _open_saved(datasets, directory: Path, split: Split):
    try:
        saved = datasets.load_from_disk(str(directory))
    except Exception as fault:
        raise DataError(f"dataset {directory}: cannot be opened ({one_line(fault)})") from None
    if not isinstance(saved, dict):
        return saved, split
    if split.name not in saved:
        raise DataError(f"dataset {directory}: no split '{split.name}'; the splits there are {', '.join(saved)}")
    return saved[split.name], split


def _load(datasets, request: Request):
    name, configuration = request.dataset, None
    if not Path(name).exists() and ":" in name:
        name, configuration = name.split(":", 1)
    try:
        return datasets.load_dataset(name, configuration, split=request.split or "train")
    except Exception as fault:  # the hub client, file systems and builders each raise classes of their own
        # A builder's own says only that something failed.
        cause = fault.__cause__ if type(fault) is datasets.exceptions.DatasetGenerationError else fault
        raise DataError(
            f"dataset '{request.dataset}', split '{request.split}': cannot be opened ({one_line(cause)}): "
            "pass an existing file, a dataset directory, or an id that is in the local cache or can be fetched"
        ) from None
