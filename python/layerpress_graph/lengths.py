"""The length of the sample that is recorded, so that the graph holds for samples of as many lengths as possible."""

from __future__ import annotations

from typing import Any, Callable

import sympy
import torch
from torch.utils._sympy.functions import FloorDiv

from .serialization import EXAMPLE_TOKENS, VIEWS, Writer

_TOKENS = sympy.Symbol("T", integer=True, positive=True)
# Operators whose result is an argument, that in this place, if it has the argument's shape.
_WHOLE = {**dict.fromkeys(VIEWS, 0), "aten.slice.Tensor": 0, "aten.expand.default": 0, "aten.alias.default": 0,
          "aten.slice_scatter.default": 1}
_LONGEST = 1 << 14  # tokens; a limit beyond stays


def recorded(record: Callable[[int], Writer], wanted: int | None = None) -> Writer:
    """What `record` makes of a sample of so many tokens. Where that holds up to fewer tokens than wanted, it is what it makes of
    a long sample, if that holds without a limit and, for the lengths between, computes the same as what shorter ones make."""
    first = record(EXAMPLE_TOKENS)
    most = first.most
    if most is None or most >= min(wanted or _LONGEST, _LONGEST):
        return first
    try:
        return _longest(record, first, most) or first
    except Exception:  # what a foreign model does with a long sample cannot be foreseen; the first recording holds as it is
        return first


def _longest(record: Callable[[int], Writer], first: Writer, most: int) -> Writer | None:
    longest = record(2 * (most + 1) + EXAMPLE_TOKENS)
    if longest.most is not None:
        return None
    between = [] if longest.least <= most + 1 else [record(most + 1 + EXAMPLE_TOKENS)]
    for shorter in (*between, first):
        if shorter.most is None or shorter.most + 1 < longest.least or not _same(longest, shorter, shorter.most):
            return None
        longest.least = min(longest.least, shorter.least)
    return longest


def _same(longer: Writer, shorter: Writer, most: int) -> bool:
    """Whether both compute the same for the lengths that `shorter` holds for, up to `most`."""
    lengths = shorter.least, most
    known: dict[Any, int] = {}
    return _Numbers(longer, lengths, known).result() == _Numbers(shorter, lengths, known).result()


class _Numbers:
    """Numbers the values of a program: equal numbers mean equal values, for samples of these lengths."""

    def __init__(self, writer: Writer, lengths: tuple[int, int], known: dict[Any, int]):
        self.writer, self.lengths, self.known = writer, lengths, known
        self.found: dict[torch.fx.Node, Any] = {}
        graph = writer.write()
        self.given: dict[int, Any] = {entry["id"]: (part, entry["name"]) for part in ("inputs", "parameters") for entry in graph[part]}
        self.given.update({entry["id"]: _content(writer.constants[entry["name"]]) for entry in graph["constants"]})

    def result(self) -> int:
        output = self.writer.graph["output"]
        for node, number in self.writer.ids.items():
            self.found[node] = self._key(node, self.given.get(number))
            if number == output:
                return self.found[node]
        raise AssertionError("a graph has an output")

    def _key(self, node: torch.fx.Node, given):
        value = node.meta.get("val")
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._content(value)
        if given is None:
            given = self._operation(node, value)
        return given if isinstance(given, int) else self.known.setdefault(given, len(self.known))

    def _operation(self, node: torch.fx.Node, value):
        """What tells the node's value from others, or the number of an equal value."""
        name, arguments = str(node.target), list(node.args)
        if isinstance(value, torch.Tensor):
            shape = self._content(value.shape)
            if _empty(shape):
                return "empty", value.dtype, shape
            if name in _WHOLE and shape == self._content(arguments[_WHOLE[name]].meta["val"].shape):
                return self.found[arguments[_WHOLE[name]]]
            if name in VIEWS:
                arguments[1] = value.shape
            if name == "aten.cat.default":
                arguments[0] = [each for each in arguments[0] if not _empty(self._content(each.meta["val"].shape))]
                if len(arguments[0]) == 1 and arguments[0][0].meta["val"].dtype == value.dtype:
                    return self.found[arguments[0][0]]
        return name, self._content(arguments), tuple((key, self._content(each)) for key, each in sorted(node.kwargs.items()))

    def _content(self, value):
        if isinstance(value, torch.fx.Node):
            return self.found[value]
        if isinstance(value, (list, tuple)):
            return "list", *map(self._content, value)
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            expression = value.node.expr.xreplace(self.writer.same).xreplace({self.writer.tokens: _TOKENS})
            return "size", expression.xreplace({each: self._quotient(each) for each in expression.atoms(FloorDiv)})
        if isinstance(value, int) and not isinstance(value, bool):
            return "size", sympy.Integer(value)
        return type(value).__name__, repr(value)

    def _quotient(self, size: sympy.Basic) -> sympy.Basic:
        """A number where the quotient of the tokens by a number is the same for all lengths."""
        tokens, parts = size.args
        if tokens != _TOKENS or not parts.is_Integer or parts <= 0:
            return size
        first, last = (sympy.Integer(length // int(parts)) for length in self.lengths)
        return first if first == last else size


def _empty(shape: tuple) -> bool:
    return ("size", sympy.Integer(0)) in shape


def _content(value: torch.Tensor):
    return value.dtype, tuple(value.shape), value.reshape(-1).view(torch.uint8).numpy().tobytes()
