"""The modifiers of recipes, under LLM Compressor's names and with its arguments (and Layerpress's own). The classes come from the tables
of the C++ library. A modifier that is not implemented has a class, too, which refuses to be made."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import json
from typing import Any

from .. import _native
from ..errors import RecipeError
from ..native import TABLES, scalar


class Modifier:
    """One modifier of a recipe. Raises RecipeError for arguments that it does not take."""

    arguments: dict[str, Any]
    type_of_recipe: str  # the name of the class, also of classes that are derived from it

    def __init__(self, **arguments: Any):
        self._take({name: plain(value) for name, value in arguments.items()})

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an argument; the modifier stays as it was if it does not take it."""
        self._take({**self.arguments, name: plain(value)})

    def __getattr__(self, name: str) -> Any:
        """An argument that was given."""
        arguments = vars(self).get("arguments", {})  # not there while a copy is made
        if name == "ignore" and name not in arguments and "arguments" in vars(self):
            with contextlib.suppress(RecipeError):  # a modifier without such a list
                self._take({**arguments, name: []})  # which scripts extend
                arguments = self.arguments
        if name not in arguments:
            raise AttributeError(f"{type(self).__name__} was given no argument {name}")
        return arguments[name]

    def _take(self, arguments: dict[str, Any]) -> None:
        try:
            text = json.dumps(arguments, allow_nan=False)
        except ValueError:
            raise RecipeError(f"[recipe.modifier] {self.type_of_recipe}: an argument is NaN or infinite") from None
        except TypeError as fault:
            raise RecipeError(f"[recipe.modifier] {self.type_of_recipe}: an argument is no text, number or list of them ({fault})") from None
        _native.check_modifier(self.type_of_recipe, text)
        vars(self)["arguments"] = arguments

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{type(self).__name__}({inside})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.arguments == other.arguments

    __hash__ = None


def plain(value: Any) -> Any:
    """A value as JSON has it; schemes of compressed-tensors become mappings without what they leave open."""
    if hasattr(value, "model_dump"):
        return plain(value.model_dump(mode="json", exclude_none=True, exclude_unset=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return plain(dataclasses.asdict(value))
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    return scalar(value)


@dataclasses.dataclass
class AWQMapping:
    """An entry of AWQModifier's mappings."""

    smooth_layer: str
    balance_layers: list[str]
    activation_hook_target: str | None = None


for _kind in TABLES["modifiers"]:
    globals()[_kind["type"]] = type(_kind["type"], (Modifier,), {"__module__": __name__, "type_of_recipe": _kind["type"]})
__all__ = ["AWQMapping", "Modifier", *(kind["type"] for kind in TABLES["modifiers"])]
