"""The validated fields of the JSON request."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Optional

from .content import POSITIONS_COLUMN, TOOLS_COLUMN
from .errors import DataError
from .images import IMAGE_COLUMNS, unread_columns
from .loss_mask import ATTENTION_MASK_COLUMN, LOSS_MASK_COLUMN
from .vision_processor import takes_images, takes_sound

_REQUIRED = ("model", "dataset", "output")
_MINIMUM = {"num_samples": 1, "max_seq_length": 1, "seed": 0}
_MAXIMUM = {"num_samples": 2**31 - 1, "max_seq_length": 2**31 - 1, "seed": 2**64 - 1}
_LAST_POSITION = 2**62


@dataclass(frozen=True)
class Request:
    """Has the field names and defaults of the JSON object."""

    model: str
    dataset: str
    output: str
    split: str = "train"
    text_column: str = "text"
    num_samples: int = 512
    max_seq_length: int = 2048
    shuffle: bool = False
    seed: int = 0
    concatenate: bool = False
    use_loss_mask: bool = False
    # Positions [first, last) of the selected order, for programs that divide a dataset.
    rows: Optional[list] = None
    uncut: bool = False

    @property
    def model_directory(self) -> Path:
        return Path(self.model)

    @property
    def dataset_folder(self) -> Optional[Path]:
        """The folder to which file names in rows are relative; None if the dataset is not a file."""
        path = Path(self.dataset)
        if path.is_dir():
            return path
        return path.parent if path.is_file() else None

    @cached_property
    def extra_columns(self) -> tuple[str, ...]:
        """Columns that are looked at beside those with the text."""
        return (*self.image_columns, *self.unread_columns, TOOLS_COLUMN, POSITIONS_COLUMN, ATTENTION_MASK_COLUMN,
                *((LOSS_MASK_COLUMN,) if self.use_loss_mask else ()))

    @cached_property
    def image_columns(self) -> tuple[str, ...]:
        """Columns with images for this model."""
        return IMAGE_COLUMNS if takes_images(self.model_directory) else ()

    @cached_property
    def unread_columns(self) -> tuple[str, ...]:
        """Columns with sound or videos, if the model takes them; nothing here reads them."""
        return unread_columns(takes_sound(self.model_directory), bool(self.image_columns))


def parse_request(values: dict[str, Any]) -> Request:
    """Checks the request; raises DataError for anything else, including unknown fields."""
    known = {field.name: str(field.type) for field in fields(Request)}
    for name in values:
        if name not in known:
            raise DataError(f"unknown request field '{name}': the fields are {', '.join(known)}")
    for name in _REQUIRED:
        if name not in values:
            raise DataError(f"the request lacks '{name}': it is required")
    for name, value in values.items():
        _check_value(name, known[name], value)
    request = Request(**values)
    _check_combination(request)
    if not request.model_directory.is_dir():
        raise DataError(f"model '{request.model}' is not a directory: pass a checkpoint directory")
    return request


def _check_value(name: str, kind: str, value: Any) -> None:
    if name == "rows":
        return _check_rows(value)
    expected: Any = {"str": str, "int": int, "bool": bool}[kind]
    # bool is an int in Python, so an exact comparison of types is needed.
    if type(value) is not expected:
        raise DataError(f"request field '{name}' must be of type {kind}, not {type(value).__name__}")
    if kind == "str" and name != "split" and not value:
        raise DataError(f"request field '{name}' is empty")
    if kind == "int" and not _MINIMUM[name] <= value <= _MAXIMUM[name]:
        raise DataError(f"request field '{name}' is {value}: it must lie between {_MINIMUM[name]} and {_MAXIMUM[name]}")


def _check_rows(value: Any) -> None:
    if value is None:
        return
    numbers = value if isinstance(value, list) and all(type(bound) is int for bound in value) else []
    if len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1] <= _LAST_POSITION:
        raise DataError(
            f"request field 'rows' is {str(value)[:40]}: pass null or [first, last] with 0 <= first <= last"
        )


def _check_combination(request: Request) -> None:
    if request.rows is None and request.uncut:
        raise DataError("request field 'uncut' is for 'rows' only: pass both or concatenate")
    if request.rows is not None and request.concatenate:
        raise DataError("request fields 'rows' and 'concatenate' exclude each other: pass 'uncut' and join the rows")
