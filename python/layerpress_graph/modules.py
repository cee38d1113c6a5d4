"""The graph of any module of torch that takes token ids, exported where it lies in memory."""

from __future__ import annotations

import logging
import os
import traceback
from pathlib import Path

import torch

from . import cache
from .command import described
from .errors import ExportError, one_line
from .lengths import recorded
from .serialization import Writer

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


class _OfIds(torch.nn.Module):
    """Takes token ids [1, tokens] and returns the module's first result."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids):
        result = self.model(input_ids)
        result = getattr(result, "logits", result)
        return (result[0] if isinstance(result, (tuple, list)) else result,)


def stored_names(module: torch.nn.Module) -> dict[str, str]:
    """{name: the first name of the same tensor} of everything in the module's state dict."""
    places: dict[tuple, str] = {}
    return {name: places.setdefault((tensor.data_ptr(), tuple(tensor.shape)) if tensor.numel() else (name,), name)
            for name, tensor in module.state_dict().items()}


def export_module(module: torch.nn.Module, folder: Path) -> None:
    """Writes graph.json and constants.safetensors. Raises ExportError naming the module and the place in its source."""
    name = type(module).__name__
    dtype = next((each.dtype for each in module.parameters() if each.is_floating_point()), None)
    if dtype not in _DTYPES:
        raise ExportError(f"{name}: its parameters are {dtype}; convert them to float32, bfloat16 or float16")
    buffers = {name: value.detach().clone() for name, value in module.named_buffers()}
    writer = recorded(lambda tokens: Writer(_exported(module, tokens), buffers))
    graph = described(writer, module)
    _add_sources(graph, stored_names(module))
    graph |= {"dtype": _DTYPES[dtype], "class": name, "way": "module", "gates": {}, "vocab_size": _vocabulary(graph, name),
              "max_position_embeddings": 0, "tied_head": False, "head": _head(graph, module)}
    cache.write(folder, graph, writer.constants)


def _exported(module: torch.nn.Module, tokens: int):
    running: list[str] = []
    hooks, were_quiet = _follow(module, running), logging.root.manager.disable
    in_training = [each for each in module.modules() if each.training]
    module.eval()
    logging.disable(logging.CRITICAL)  # torch logs the traceback of a failure beside raising it
    try:
        with torch.no_grad():
            program = torch.export.export(
                _OfIds(module), (), {"input_ids": torch.zeros((1, tokens), dtype=torch.long)},
                dynamic_shapes={"input_ids": {1: torch.export.Dim.DYNAMIC}}, strict=False,
                prefer_deferred_runtime_asserts_over_guards=True)
            return program.run_decompositions({})  # no operation in place is left
    except Exception as fault:  # what a foreign module does cannot be foreseen
        where = f"module '{running[-1]}'" if running else "the module"
        raise ExportError(f"{type(module).__name__} cannot be exported: {where}{_line(fault)}: {type(fault).__name__}: "
                          f"{one_line(fault, 300)}; its forward must take token ids [1, tokens] and must not decide by "
                          "values of tensors: use torch.where, or torch.cond") from None
    finally:
        logging.disable(were_quiet)
        for each in in_training:
            each.training = True
        for hook in hooks:
            hook.remove()


def _follow(module: torch.nn.Module, running: list[str]) -> list:
    """Hooks that keep the paths of the modules that are running."""
    hooks = []
    for path, each in module.named_modules():
        name = path or type(module).__name__
        hooks.append(each.register_forward_pre_hook(lambda *given, name=name: running.append(name)))
        hooks.append(each.register_forward_hook(lambda *given: running.pop() and None))
    return hooks


def _line(fault: Exception) -> str:
    """The innermost line that is the caller's."""
    skipped = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    frames = [frame for frame in traceback.extract_tb(fault.__traceback__) if not frame.filename.startswith(skipped)
              and os.path.exists(frame.filename)]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""


def _add_sources(graph: dict, names: dict[str, str]) -> None:
    for parameter in graph["parameters"]:
        first = names.get(parameter["name"])
        if first is None:
            raise ExportError(f"parameter '{parameter['name']}' is not in the module's state_dict()")
        parameter |= {"sources": [{"name": first, "shape": parameter["shape"]}], "steps": [], "result": {"source": 0},
                      "splits": [], "tied": "" if first == parameter["name"] else first}


def _vocabulary(graph: dict, name: str) -> int:
    """The rows of the embeddings that token ids choose from."""
    ids = {entry["id"] for entry in graph["inputs"]}
    shapes = {entry["id"]: entry["shape"] for entry in graph["parameters"]}
    rows = [shapes[node["args"][0]["v"]][0] for node in graph["nodes"] if node["op"] == "aten.embedding.default"
            and node["args"][1].get("v") in ids and node["args"][0].get("v") in shapes]
    if not rows:
        raise ExportError(f"{name}: token ids reach no torch.nn.Embedding; only modules that embed token ids are taken")
    return min(rows)


def _head(graph: dict, module: torch.nn.Module) -> str:
    """The linear that makes the output, or ""."""
    made = next((node for node in graph["nodes"] if node["out"] == graph["output"]), None)
    path = "" if made is None else graph["modules"][made["module"]][0]
    return path if path and isinstance(module.get_submodule(path), torch.nn.Linear) else ""
