"""Parquet files, read row group by row group."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Iterable, Iterator, Optional

from .content import lacks_columns, missing_column, wanted_columns
from .errors import DataError, MissingPackageError, one_line
from .row_source import Row, RowSource

_ROWS_PER_BATCH = 256
# Number of rows picked together, so that each row group is decoded once for all of its picked rows.
_ROWS_PER_PICK = 1024


class ParquetFile(RowSource):
    def __init__(self, path: Path, text_column: str, extra_columns: tuple[str, ...] = ()):
        super().__init__(str(path))
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError as fault:
            raise MissingPackageError("pyarrow", "reading .parquet", fault) from None
        self._arrow_error = pyarrow.ArrowException
        try:
            self._file = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowException, OSError) as fault:
            raise self._unreadable(fault) from None
        names = self._file.schema_arrow.names
        self._columns = [name for name in wanted_columns(text_column) if name in names]
        if lacks_columns(text_column, names):
            raise missing_column(self.name, names, text_column)
        self._columns += [name for name in extra_columns if name in names]
        metadata = self._file.metadata
        sizes = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
        self._group_starts = list(accumulate(sizes, initial=0))

    def count(self) -> int:
        return self._group_starts[-1]

    def rows(self, start: int, stop: Optional[int]) -> Iterator[Row]:
        stop = self.count() if stop is None else min(stop, self.count())
        if start >= stop:
            return
        group = self._group_of(start)
        skipped = self._group_starts[group]
        groups = range(group, self._group_of(stop - 1) + 1)
        values = islice(self._values(groups), start - skipped, stop - skipped)
        yield from (Row(number, row) for number, row in enumerate(values, start=start + 1))

    def pick(self, indices: Iterable[int]) -> Iterator[Row]:
        iterator = iter(indices)
        while chosen := list(islice(iterator, _ROWS_PER_PICK)):
            found: dict[int, dict[str, Any]] = {}
            for group in sorted({self._group_of(i) for i in chosen}):
                first, end = self._group_starts[group], self._group_starts[group + 1]
                wanted = {i for i in chosen if first <= i < end}
                rows = islice(self._values([group]), max(wanted) - first + 1)
                found.update((i, row) for i, row in enumerate(rows, start=first) if i in wanted)
            yield from (Row(i + 1, found[i]) for i in chosen)

    def _group_of(self, row: int) -> int:
        return bisect_right(self._group_starts, row) - 1

    def _values(self, groups: Iterable[int]) -> Iterator[dict[str, Any]]:
        try:
            for batch in self._file.iter_batches(_ROWS_PER_BATCH, row_groups=list(groups), columns=self._columns):
                for row in range(batch.num_rows):
                    yield {name: batch.column(name)[row].as_py() for name in batch.schema.names}
        except (self._arrow_error, OSError, UnicodeDecodeError) as fault:
            raise self._unreadable(fault) from None

    def _unreadable(self, fault: Exception) -> DataError:
        return DataError(f"{self.name}: not a readable Parquet file ({one_line(fault, 200)})")
