"""Messages of the library and of the helper in Python's words: options as keywords."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Iterator

from . import _native
from .errors import Error

_TYPES = {option["name"]: option["type"] for options in json.loads(_native.tables()).values() for option in options if "name" in option}
_VALUE = r"'[^']*'|[0-9][\w.]*|[A-Z][A-Z_/0-9]*(?:,[A-Z][A-Z_/0-9]*)*\b|[a-z]+(?=:)|" \
         r"(?:Linear|fast|balanced|best|max|gptq|rtn|sequential|two_pass|basic|datafree|independent)\b"
_OPTION = re.compile(rf"--(no-)?([a-z][a-z0-9]*(?:-[a-z0-9]+)*)(?:(?: |=)({_VALUE}))?(?=(:?))")


# Rows and tokenizers that were passed, in the files that the program reads.
_ROWS = re.compile(r"\S*/layerpress-work-\S*/rows\.jsonl(, line [0-9]+)?")
_TOKENIZER = re.compile(r"\S*/layerpress-work-[^\s/]*/tokenizer\b")


def in_python(text: str) -> str:
    """`--download` as `download=True`, `--group-size 64` as `group_size=64`, `--output` as `output=`."""
    return _OPTION.sub(_keyword, _TOKENIZER.sub("the tokenizer", _ROWS.sub(_row, text)))


def _row(found: re.Match) -> str:
    return "the dataset" if found[1] is None else found[1].replace(", line", "row")


def _keyword(found: re.Match) -> str:
    no, name, value, colon = found.groups()
    if name not in _TYPES:
        return found.group(0)
    keyword = name.replace("-", "_")
    if _TYPES[name] == "bool":
        said = f" {value}" if value else ""
        return keyword + ("" if colon and not value else f"={not no}") + said
    if value is not None and _TYPES[name] == "list[str]" and "," in value and value[0] != "'":
        return f"{keyword}={json.dumps(value.split(','))}"
    if value is not None:
        return f"{keyword}={value if value[0] in chr(39) + '0123456789' else repr(value)}"
    return keyword if colon else f"{keyword}="


@contextlib.contextmanager
def python_errors() -> Iterator[None]:
    """Errors of the library that are raised inside name keywords."""
    try:
        yield
    except Error as fault:
        said = in_python(str(fault))
        if said == str(fault):
            raise
        raise type(fault)(said) from None
