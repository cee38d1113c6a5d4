"""Plain text (.txt): each paragraph is a row; blank lines separate paragraphs."""

from __future__ import annotations

from pathlib import Path
from typing import Iterator, Mapping

from .row_source import Lines, RecordFile


class Paragraphs(RecordFile):
    def __init__(self, path: Path, text_column: str):
        super().__init__(path)
        self._text_column = text_column

    def scan(self, lines: Lines) -> Iterator[tuple[int, int, list[bytes]]]:
        paragraph: list[bytes] = []
        offset, number = 0, 0
        for raw in lines:
            if not raw.strip():
                if paragraph:
                    yield offset, number, paragraph
                paragraph = []
                continue
            if not paragraph:
                offset, number = lines.offset, lines.number
            paragraph.append(raw.rstrip(b"\r\n"))
        if paragraph:
            yield offset, number, paragraph

    def parse(self, raw: list[bytes], line: int) -> Mapping[str, str]:
        return {self._text_column: "\n".join(self.decode(part, line + i) for i, part in enumerate(raw))}
