"""JSON lines (.jsonl) and JSON documents (.json)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Iterator, Mapping

from .errors import DataError, one_line
from .row_source import Lines, RecordFile, RowSource, SequenceSource


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these members; json takes the last one of equal names."""
    members = dict(pairs)
    if len(members) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the name {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return members


class JsonLines(RecordFile):
    """One object per line; blank lines are skipped."""

    def scan(self, lines: Lines) -> Iterator[tuple[int, int, bytes]]:
        for raw in lines:
            if raw.strip():
                yield lines.offset, lines.number, raw

    def parse(self, raw: bytes, line: int) -> Mapping[str, Any]:
        text = self.decode(raw, line)
        try:
            values = json.loads(text, object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError) as fault:
            what = f"{fault.msg} at character {fault.pos + 1}" if isinstance(fault, json.JSONDecodeError) else one_line(fault, 120)
            raise DataError(
                f"{self.name}, line {line}: not JSON ({what}): each line must be one JSON object"
            ) from None
        if not isinstance(values, dict):
            raise DataError(f"{self.name}, line {line}: a JSON {type(values).__name__}, not an object")
        return values


def open_json(path: Path) -> RowSource:
    """Opens a list of objects, an object of columns, or JSON lines in a .json file."""
    try:
        document = json.loads(path.read_bytes().decode("utf-8-sig"), object_pairs_hook=_without_repetition)
    except UnicodeDecodeError as fault:
        raise DataError(
            f"{path}: byte {fault.start + 1} is not UTF-8 ({fault.reason}): save the file as UTF-8"
        ) from None
    except json.JSONDecodeError as fault:
        if fault.msg == "Extra data":
            return JsonLines(path)
        raise DataError(f"{path}, line {fault.lineno}: not JSON ({one_line(fault, 120)})") from None
    except (ValueError, RecursionError) as fault:
        raise DataError(f"{path}: not JSON ({one_line(fault, 120)})") from None
    return SequenceSource(str(path), _document_rows(path, document))


def _document_rows(path: Path, document: Any) -> list[dict]:
    if isinstance(document, dict):
        columns = list(document.values())
        if not columns or not all(isinstance(column, list) for column in columns):
            return [document]
        if len({len(column) for column in columns}) > 1:
            lengths = ", ".join(f"'{name}' {len(column)}" for name, column in list(document.items())[:20])
            raise DataError(f"{path}: columns of different lengths ({lengths})")
        return [dict(zip(document, values)) for values in zip(*columns)]
    if not isinstance(document, list):
        raise DataError(f"{path}: neither a list of objects nor an object with columns")
    for number, row in enumerate(document, start=1):
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number}: a JSON {type(row).__name__}, not an object")
    return document
