"""An exported program -> the JSON of the graph file, and its constants."""

from __future__ import annotations

import math
import operator
from typing import Any

import sympy
import torch
from torch.export.graph_signature import InputKind, OutputKind

from .errors import ExportError

DTYPES = {torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
          torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
          torch.bool: "bool", torch.complex64: "complex64", torch.complex128: "complex128"}
# Functions of integers that sizes are computed with.
_NUMBERS = {"mul", "add", "sub", "floordiv", "mod", "eq", "ne", "le", "lt", "ge", "gt", "neg", "sym_max", "sym_min",
            "sym_float", "pow", "truediv", "sym_int", "sym_not", "getitem", "trunc", "ceil", "floor"}
_ASSERTIONS = {f"aten.{name}" for name in (
    "_assert_scalar.default", "_assert_tensor_metadata.default", "sym_constrain_range_for_size.default",
    "sym_constrain_range.default", "_assert_async.msg", "_assert_async.default")}
_WRAPPER = "model."
VIEWS = {"aten.view.default", "aten._unsafe_view.default", "aten.reshape.default"}
_CONDITIONS = (sympy.Eq, sympy.StrictLessThan, sympy.LessThan, sympy.StrictGreaterThan, sympy.GreaterThan)
EXAMPLE_TOKENS = 24  # of the first sample that is recorded: no size of a usual model
_MOST = 1 << 20  # tokens; a limit beyond is none


def unwrapped(name: str) -> str:
    """The name in the model of a name in the wrapper."""
    return name.removeprefix(_WRAPPER)


class Writer:
    """Numbers values, in the order of their nodes, and describes them."""

    def __init__(self, program, buffers: dict[str, torch.Tensor], token_axis: int = 1):
        self.token_axis = token_axis
        self.program, self.module, self.buffers = program, program.graph_module, buffers
        self.ids: dict[torch.fx.Node, int] = {}
        self.graph: dict[str, Any] = {"inputs": [], "parameters": [], "constants": [], "modules": [], "nodes": []}
        self.constants: dict[str, torch.Tensor] = {}
        self.module_ids: dict[tuple[str, str], int] = {}
        self.same: dict = {}
        self.tokens = self._token_symbol()
        self.least, self.most = self._range()

    def write(self) -> dict:
        """The graph file's JSON about the program."""
        if "output" in self.graph:
            return self.graph
        inline_regions(self.module)
        alive = self._alive()
        kinds = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs if hasattr(spec.arg, "name")}
        for node in self.module.graph.nodes:
            if node.op == "placeholder":
                self._input(node, kinds[node.name], node in alive)
            elif node.op == "get_attr" and node in alive:
                self._constant(node, f"const.{node.target}", getattr(self.module, node.target))
            elif node.op == "call_function" and node in alive:
                self._node(node)
            elif node.op == "output":
                self.graph["output"] = self.ids[node.args[0][self._result()]]
        self.graph["values"] = len(self.ids)
        return self.graph

    def _result(self) -> int:
        """The place of the model's result among the outputs. What the program writes back to parameters stands before it."""
        specs = self.program.graph_signature.output_specs
        changed = [spec.target for spec in specs if spec.kind == OutputKind.PARAMETER_MUTATION]
        if changed:
            raise ExportError(f"the model changes its parameter '{unwrapped(changed[0])}' while it runs")
        return next(place for place, spec in enumerate(specs) if spec.kind == OutputKind.USER_OUTPUT)

    def _token_symbol(self):
        """The symbol of the number of tokens. A model that does not relate positions to tokens has another one for these."""
        sizes = {}
        given = set(self.program.graph_signature.user_inputs)
        for node in self.module.graph.nodes:
            name = next((each for each in ("input_ids", "position_ids") if node.name.endswith(each)), None)
            if node.name in given and name:
                sizes[name] = node.meta["val"].shape[-1 if name == "position_ids" else self.token_axis]
        if not isinstance(sizes["input_ids"], torch.SymInt):
            raise ExportError(f"the number of tokens became fixed ({sizes['input_ids']})")
        self.token_size = sizes["input_ids"]
        tokens = self.token_size.node.expr
        if isinstance(sizes.get("position_ids"), torch.SymInt):
            self.same[sizes["position_ids"].node.expr] = tokens
        return tokens

    def _range(self) -> tuple[int, int | None]:
        """The lengths of samples that the recorded program holds for. Where the model loops over parts of a sample, their number
        became fixed."""
        least, most = 2, None
        for symbol, bounds in self.program.range_constraints.items():
            if symbol == self.tokens:
                least = max(int(bounds.lower), 2)
                most = int(bounds.upper) if getattr(bounds.upper, "is_Integer", False) else None
        conditions = self._conditions()
        if not conditions:
            return least, most

        def holds(tokens: int) -> bool:
            return all(bool(size.xreplace({self.tokens: sympy.Integer(tokens)})) for size in conditions)

        shortest = longest = int(self.token_size.node.hint)
        while shortest > least and holds(shortest - 1):
            shortest -= 1
        step = _MOST
        while step > 0:
            if longest + step <= (most or _MOST) and holds(longest + step):
                longest += step
            step //= 2
        return shortest, most if longest == _MOST else longest

    def _conditions(self) -> list[sympy.Basic]:
        """What the number of tokens must satisfy, beside that sizes differ from others: PyTorch asks that of 0 and 1 everywhere."""
        environment = self.token_size.node.shape_env
        asserted = (each.expr.xreplace(self.same) for asserts in environment.deferred_runtime_asserts.values() for each in asserts)
        return [expression for expression in asserted if isinstance(expression, _CONDITIONS) and expression.free_symbols == {self.tokens}]

    def _alive(self) -> set:
        alive = set()
        for node in reversed(self.module.graph.nodes):
            if node.op == "output" or node in alive:
                alive.update(node.all_input_nodes)
                alive.add(node)
        return alive

    def _new(self, node) -> int:
        return self.ids.setdefault(node, len(self.ids))

    def size(self, value):
        """A number, "T" for the number of tokens, or another expression as text."""
        if isinstance(value, int):
            return value
        expression = value.node.expr.xreplace(self.same)
        if expression == self.tokens:
            return "T"
        return int(expression) if expression.is_Integer else str(expression).replace(str(self.tokens), "T")

    def _type(self, value: torch.Tensor) -> dict:
        return {"dtype": DTYPES[value.dtype], "shape": [self.size(size) for size in value.shape]}

    def _input(self, node, spec, alive: bool) -> None:
        value = node.meta.get("val")
        if spec.kind == InputKind.USER_INPUT:
            if isinstance(value, torch.Tensor):
                name = "position_ids" if "position_ids" in node.name else "input_ids"
                self.graph["inputs"].append({"name": name, "id": self._new(node), **self._type(value)})
        elif spec.kind == InputKind.PARAMETER or (spec.kind == InputKind.BUFFER and spec.persistent):
            if alive:
                self.graph["parameters"].append(
                    {"name": unwrapped(spec.target), "id": self._new(node), **self._type(value)})
        elif alive and spec.kind == InputKind.BUFFER:
            name = unwrapped(spec.target)
            self._constant(node, name, self.buffers.get(name))
        elif alive:
            self._constant(node, f"const.{spec.target}", self.program.constants.get(spec.target))

    def _constant(self, node, name: str, value) -> None:
        if value is None or type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
            value = getattr(value, "_value", None) if value is None else torch.as_tensor(value)
        if value is None or value.device.type == "meta":
            raise ExportError(f"the value of the buffer '{name}' is not known without weights")
        self.constants[name] = value.detach().contiguous()
        self.graph["constants"].append({"name": name, "id": self._new(node), **self._type(value)})

    def _module_id(self, node) -> int:
        """The innermost module's. The enclosing ones are listed, too, because models are cut at modules by class."""
        found = [("", "")]
        for path, kind in (node.meta.get("nn_module_stack") or {}).values():
            path = path.replace("L['self'].", "").replace("L['self']", "")
            if path:  # else the wrapper
                kind = kind if isinstance(kind, str) else kind.__qualname__
                found.append(("" if path == "model" else path.removeprefix(_WRAPPER), kind.split(".")[-1]))
        for key in found[1:] or found:
            if key not in self.module_ids:
                self.module_ids[key] = len(self.graph["modules"])
                self.graph["modules"].append(list(key))
        return self.module_ids[found[-1]]

    def _node(self, node) -> None:
        value, target = node.meta.get("val"), node.target
        if isinstance(value, torch.SymInt) and self.size(value) == "T":
            self.ids[node] = -1  # the number of tokens itself
            return
        if isinstance(target, torch._ops.OpOverload):
            name, arguments = str(target), self._by_schema(node)
        elif getattr(target, "__name__", "") in _NUMBERS or target is operator.getitem:
            name, arguments = f"sym.{target.__name__}", [self.argument(each) for each in node.args]
        else:
            name = getattr(target, "__name__", str(target))
            raise ExportError(f"{self._place(node)}: the operation '{name}' cannot be part of a graph")
        if name in VIEWS:  # where another size is 0, -1 would say nothing
            arguments[1] = [size if given == -1 and isinstance(size, int) else given
                            for given, size in zip(arguments[1], map(self.size, value.shape))]
        entry = {"op": name, "args": arguments, "module": self._module_id(node), "out": self._new(node)}
        if isinstance(value, torch.Tensor):
            entry |= self._type(value)
        self.graph["nodes"].append(entry)

    def _place(self, node) -> str:
        path, kind = self.graph["modules"][self._module_id(node)]
        return f"module '{path}' ({kind})"

    def _by_schema(self, node) -> list:
        """Positional arguments in the order of the schema; {"default": 1} where the schema's default holds."""
        arguments = []
        for place, argument in enumerate(node.target._schema.arguments):
            if place < len(node.args):
                arguments.append(self.argument(node.args[place]))
            elif argument.name in node.kwargs:
                arguments.append(self.argument(node.kwargs[argument.name]))
            else:
                arguments.append({"default": 1})
        while arguments and arguments[-1] == {"default": 1}:
            arguments.pop()
        return arguments

    def argument(self, value):
        if isinstance(value, torch.fx.Node):
            return {"tokens": 1} if self.ids[value] < 0 else {"v": self.ids[value]}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"f": str(value)}
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, torch.dtype):
            return {"dtype": DTYPES[value]}
        if isinstance(value, torch.device):
            return {"device": 1}
        if isinstance(value, torch.layout):
            return {"layout": "strided"}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).split(".")[1]}
        if isinstance(value, (list, tuple)):
            return [self.argument(each) for each in value]
        raise ExportError(f"an argument of type {type(value).__name__} cannot be part of a graph")


def inline_regions(module: torch.fx.GraphModule) -> None:
    """Puts the bodies of wrap_with_set_grad_enabled and of disabled autocast regions where they are called."""
    for node in list(module.graph.nodes):
        name = getattr(node.target, "__name__", "") if node.op == "call_function" else ""
        if name not in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            continue
        if name == "wrap_with_autocast" and node.args[2]:
            raise ExportError("the model computes under autocast")
        _inline(module, node, 1 if name == "wrap_with_set_grad_enabled" else 4)


def _inline(module: torch.fx.GraphModule, node: torch.fx.Node, place: int) -> None:
    body = getattr(module, node.args[place].target)
    inline_regions(body)
    places = [each for each in body.graph.nodes if each.op == "placeholder"]
    known = dict(zip(places, node.args[place + 1:]))
    result: Any = None
    with module.graph.inserting_before(node):
        for each in body.graph.nodes:
            if each.op == "placeholder":
                continue
            if each.op == "output":
                result = torch.fx.map_arg(each.args[0], lambda read: known[read])
                continue
            known[each] = module.graph.node_copy(each, lambda read: known[read])
            if each.op == "get_attr":
                known[each].target = f"{node.name}_{each.target}"
                setattr(module, known[each].target, getattr(body, each.target))
    for user in list(node.users):
        if user.target is operator.getitem:
            user.replace_all_uses_with(result[user.args[1]])
            module.graph.erase_node(user)
    if node.users:
        node.replace_all_uses_with(result[0] if isinstance(result, (list, tuple)) else result)
    module.graph.erase_node(node)
