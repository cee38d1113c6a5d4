"""Joins paragraphs to passages for calibration and evaluation, and writes passages to files."""
import json
import os
from pathlib import Path

PASSAGE_CHARACTERS = 3200  # a little over 512 tokens of English prose in common tokenizers


def passages(paragraphs: list[str]) -> list[str]:
    """Joins paragraphs, in order, to passages of at least PASSAGE_CHARACTERS; a shorter rest is dropped."""
    result, current, length = [], [], 0
    for paragraph in paragraphs:
        current.append(paragraph)
        length += len(paragraph) + 2
        if length >= PASSAGE_CHARACTERS:
            result.append("\n\n".join(current))
            current, length = [], 0
    return result


def write_lines(path: Path, texts: list[str]) -> None:
    """Writes {"text": ...} per line; the file appears only when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".partial")
    temporary.write_text("".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts),
                         encoding="utf-8")
    os.replace(temporary, path)
