"""Opens a dataset by its name: a file of a known type, or an id for the `datasets` package."""

from __future__ import annotations

from pathlib import Path

from .errors import DataError
from .request import Request
from .row_source import RowSource
from .split import Split, parse_split

_FILE_TYPES = (".jsonl", ".json", ".csv", ".parquet", ".txt")
_PACKED = (".gz", ".zip", ".bz2", ".xz", ".zst")


def open_dataset(request: Request) -> tuple[RowSource, Split]:
    """Returns the rows and the slice that the caller still has to apply."""
    path = Path(request.dataset)
    suffix = path.suffix.lower()
    if path.is_dir() or (suffix not in _FILE_TYPES and not path.exists()):
        from .hub_rows import open_hub_dataset

        return open_hub_dataset(request)
    if suffix in _PACKED:
        raise DataError(f"{path}: is compressed: unpack it first")
    if suffix not in _FILE_TYPES:
        raise DataError(f"{path}: unknown file type '{suffix}': the types are {' '.join(_FILE_TYPES)}")
    split = parse_split(request.split)
    try:
        return _open_file(path, suffix, request), split
    except FileNotFoundError:
        raise DataError(f"{path}: no such file: check the dataset's path") from None
    except OSError as fault:
        raise DataError(f"{path}: cannot be read ({fault.strerror}): check its permissions") from None


def _open_file(path: Path, suffix: str, request: Request) -> RowSource:
    # Imported on use: a run reads one type of file, and start-up dominates the time of a small run.
    path.open("rb").close()
    if suffix == ".jsonl":
        from .json_rows import JsonLines

        return JsonLines(path)
    if suffix == ".json":
        from .json_rows import open_json

        return open_json(path)
    if suffix == ".csv":
        from .csv_rows import CsvFile

        return CsvFile(path, request.text_column)
    if suffix == ".parquet":
        from .parquet_rows import ParquetFile

        return ParquetFile(path, request.text_column, request.extra_columns)
    from .paragraph_rows import Paragraphs

    return Paragraphs(path, request.text_column)
