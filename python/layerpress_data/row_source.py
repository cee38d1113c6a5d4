"""The interface of all datasets: rows in order, rows by index, and their number."""

from __future__ import annotations

from array import array
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Iterable, Iterator, Mapping, NamedTuple, Optional

from .errors import DataError


class Row(NamedTuple):
    """`number` locates the row for a user: the 1-based line of a text file, otherwise the 1-based row."""

    number: int
    values: Mapping[str, Any]


class RowSource:
    """Rows are counted from 0 in `rows`, `pick` and `count`."""

    unit = "row"

    def __init__(self, name: str):
        self.name = name

    def rows(self, start: int, stop: Optional[int]) -> Iterator[Row]:
        """Yields rows start..stop-1 in order, or to the end if `stop` is None; reads no further than requested."""
        raise NotImplementedError

    def pick(self, indices: Iterable[int]) -> Iterator[Row]:
        """Yields the rows with these indices, in this order."""
        raise NotImplementedError

    def count(self) -> int:
        raise NotImplementedError

    def place(self, row: Row) -> str:
        return f"{self.name}, {self.unit} {row.number}"


class SequenceSource(RowSource):
    """Rows with random access: a list in memory or a `datasets.Dataset`."""

    def __init__(self, name: str, sequence):
        super().__init__(name)
        self._sequence = sequence

    def rows(self, start: int, stop: Optional[int]) -> Iterator[Row]:
        return self.pick(range(self.count())[start:stop])

    def pick(self, indices: Iterable[int]) -> Iterator[Row]:
        return (Row(i + 1, self._sequence[i]) for i in indices)

    def count(self) -> int:
        return len(self._sequence)


class RecordFile(RowSource):
    """A text file of records, read as a stream, or by index through the byte offset of each record."""

    unit = "line"

    def __init__(self, path: Path):
        super().__init__(str(path))
        self._path = path
        self._offsets = array("q")
        self._lines = array("q")

    def scan(self, lines: "Lines") -> Iterator[tuple[int, int, Any]]:
        """Yields (byte offset, line number, raw record) of each record from the current position of `lines`."""
        raise NotImplementedError

    def parse(self, raw: Any, line: int) -> Mapping[str, Any]:
        """Converts a raw record to a row's values."""
        raise NotImplementedError

    def start(self, lines: "Lines") -> None:
        """Reads everything before the first record."""

    def rows(self, start: int, stop: Optional[int]) -> Iterator[Row]:
        with self._path.open("rb") as handle:
            lines = Lines(handle)
            self.start(lines)
            for _, line, raw in islice(self.scan(lines), start, stop):
                yield Row(line, self.parse(raw, line))

    def pick(self, indices: Iterable[int]) -> Iterator[Row]:
        self.count()
        with self._path.open("rb") as handle:
            for i in indices:
                handle.seek(self._offsets[i])
                lines = Lines(handle, self._offsets[i], self._lines[i] - 1)
                _, line, raw = next(self.scan(lines))
                yield Row(line, self.parse(raw, line))

    def count(self) -> int:
        if not self._offsets:
            with self._path.open("rb") as handle:
                lines = Lines(handle)
                self.start(lines)
                for offset, line, _ in self.scan(lines):
                    self._offsets.append(offset)
                    self._lines.append(line)
        return len(self._offsets)

    def decode(self, raw: bytes, line: int) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as fault:
            raise DataError(
                f"{self.name}, line {line}: byte {fault.start + 1} is not UTF-8 ({fault.reason}): "
                "save the file as UTF-8"
            ) from None


class Lines:
    """Lines of a binary file as bytes; knows the offset and the number of the last one. Drops a byte order mark."""

    _BYTE_ORDER_MARK = b"\xef\xbb\xbf"

    def __init__(self, handle: BinaryIO, offset: int = 0, number: int = 0):
        self._handle = handle
        self._next_offset = offset
        self.offset = offset
        self.number = number

    def __iter__(self) -> "Lines":
        return self

    def __next__(self) -> bytes:
        line = self._handle.readline()
        if not line:
            raise StopIteration
        self.offset = self._next_offset
        self._next_offset += len(line)
        self.number += 1
        return line[3:] if self.offset == 0 and line.startswith(self._BYTE_ORDER_MARK) else line

    @property
    def next_offset(self) -> int:
        return self._next_offset
