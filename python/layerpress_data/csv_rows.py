"""Comma-separated values with a header line, quoted as spreadsheets do."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Iterator, Mapping

from .content import lacks_columns, missing_column
from .errors import DataError, one_line
from .row_source import Lines, RecordFile

_LARGEST_FIELD = 2**31 - 1  # the default of 128 KiB is too small for documents


class CsvFile(RecordFile):
    def __init__(self, path: Path, text_column: str):
        super().__init__(path)
        csv.field_size_limit(_LARGEST_FIELD)
        with path.open("rb") as handle:
            header = next(self.scan(Lines(handle)), None)
        if header is None:
            raise DataError(f"{path}: the file is empty: the first line must name the columns")
        self._columns = header[2]
        if twice := next((name for name in self._columns if name and self._columns.count(name) > 1), None):
            raise DataError(f"{path}: the header names the column {one_line(twice, 40)} twice: give its columns different names")
        if lacks_columns(text_column, self._columns):
            raise missing_column(str(path), self._columns, text_column)

    def start(self, lines: Lines) -> None:
        next(self.scan(lines), None)

    def scan(self, lines: Lines) -> Iterator[tuple[int, int, list[str]]]:
        # The reader requests a line only when it needs one, so after each record `lines` is at the record's end.
        reader = csv.reader((self.decode(raw, lines.number) for raw in lines), strict=True)
        while True:
            offset, line = lines.next_offset, lines.number + 1
            try:
                fields = next(reader, None)
            except csv.Error as fault:
                raise DataError(f"{self.name}, line {line}: not CSV ({one_line(fault)})") from None
            if fields is None:
                return
            if fields:
                yield offset, line, fields

    def parse(self, raw: list[str], line: int) -> Mapping[str, str]:
        if len(raw) != len(self._columns):
            raise DataError(
                f"{self.name}, line {line}: {len(raw)} fields where the header names {len(self._columns)}: "
                "quote fields that hold commas or line breaks"
            )
        return dict(zip(self._columns, raw))
