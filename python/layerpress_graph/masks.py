"""Masks are nodes without content: every one must end in attention nodes, which then take its kind."""

from __future__ import annotations

import torch

from .errors import ExportError

_MASK, _ATTENTION = "layerpress.mask.default", "layerpress.attention.default"
_MASK_ARGUMENT, _KIND, _WINDOW = 3, 7, 8
# What may lie between a mask and an attention: operations that choose or copy.
_CARRIERS = {f"aten.{name}" for name in (
    "to.dtype", "to.device", "slice.Tensor", "expand.default", "alias.default", "unsqueeze.default", "squeeze.dim",
    "contiguous.default", "_to_copy.default", "clone.default", "detach.default", "lift_fresh_copy.default",
    "_assert_tensor_metadata.default", "_to_copy.default", "to.dtype_layout")}


def resolve(module: torch.fx.GraphModule) -> None:
    """Gives attention nodes the kind and window of their mask. Raises ExportError if a model uses a mask otherwise."""
    kinds: dict[torch.fx.Node, tuple[str, int]] = {}
    for node in module.graph.nodes:
        if node.op != "call_function":
            if node.op == "output" and any(read in kinds for read in node.all_input_nodes):
                raise ExportError("the model returns a mask")
            continue
        name = str(node.target)
        masks = [read for read in node.all_input_nodes if read in kinds]
        if name == _MASK:
            kinds[node] = (node.args[1], node.args[2])
        elif name == _ATTENTION:
            _resolve_attention(node, kinds)
        elif masks and name in _CARRIERS:
            kinds[node] = kinds[masks[0]]
        elif masks:
            raise ExportError(f"{name} computes with a mask")


def _resolve_attention(node: torch.fx.Node, kinds: dict) -> None:
    arguments = list(node.args)
    for place, argument in enumerate(arguments):
        if place != _MASK_ARGUMENT and isinstance(argument, torch.fx.Node) and argument in kinds:
            raise ExportError("an attention takes a mask as another argument")
    mask = arguments[_MASK_ARGUMENT]
    if arguments[_KIND] == "by mask":
        if mask not in kinds:
            raise ExportError("an attention takes a mask of unknown origin")
        arguments[_KIND], arguments[_WINDOW] = kinds[mask]
        arguments[_MASK_ARGUMENT] = None
        node.args = tuple(arguments)
    elif mask in kinds:
        raise ExportError("an attention takes a mask whose kind got lost")
