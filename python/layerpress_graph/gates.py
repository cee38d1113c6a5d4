"""What experts do between their projections: a function that the program knows by name, or a small graph of its own."""

from __future__ import annotations

from typing import Any, Callable

import torch

from . import hooks
from .serialization import Writer
from .token_proof import mark_mixing

_EXPERTS, _GATE_UP, _TRANSPOSED, _FUNCTION = "layerpress.experts.default", 3, 7, 9


def name_gates(program, dtype: torch.dtype) -> dict[str, dict]:
    """Writes the known names of gates into the experts' nodes; returns the graphs of all others."""
    graphs: dict[str, dict] = {}
    names: dict[Any, str] = {}
    for node in program.graph_module.graph.nodes:
        if str(node.target) != _EXPERTS:
            continue
        gate, module = hooks.EXPERTS.gates[node.args[_FUNCTION]]
        key = node.args[_FUNCTION]
        if key not in names:
            known = known_gate(module)
            names[key] = known or f"gate{len(graphs)}"
            if known is None:
                shape = node.args[_GATE_UP].meta["val"].shape
                graph = _graph(gate, shape[2 if node.args[_TRANSPOSED] else 1], dtype)
                graphs[names[key]] = {**graph, "interleaved": module.has_gate and not module.is_concatenated}
        arguments = list(node.args)
        arguments[_FUNCTION] = names[key]
        node.args = tuple(arguments)
    return graphs


def known_gate(module) -> str | None:
    """"silu", "gelu" or "gelu_tanh" where the gate is function(a) * b of the two halves [a, b]."""
    from transformers.integrations import moe

    if not module.has_gate or not module.is_concatenated:
        return None
    if getattr(type(module)._apply_gate, "__code__", None) is not moe._default_apply_gate.__code__:
        return None
    probe = torch.linspace(-4, 4, 101)
    known: dict[str, Callable] = {"silu": torch.nn.functional.silu, "gelu": torch.nn.functional.gelu,
                                  "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}
    with torch.no_grad():
        values = module.act_fn(probe)
    return next((name for name, function in known.items() if torch.equal(values, function(probe))), None)


class _Gate(torch.nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate

    def forward(self, input_ids):
        return (self.gate(input_ids),)


def _graph(gate, features: int, dtype: torch.dtype) -> dict:
    with torch.no_grad():
        program = torch.export.export(_Gate(gate), (torch.zeros(4, features, dtype=dtype),),
                                      dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), strict=False)
        writer = Writer(program.run_decompositions({}), {}, token_axis=0)
    graph = writer.write()
    mark_mixing(graph)
    graph["values_of_constants"] = {name: value.tolist() for name, value in writer.constants.items()}
    return graph
