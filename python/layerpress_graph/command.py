"""Executes a request: exports the graph unless it is cached, returns where it lies."""

from __future__ import annotations

import json
import os
from typing import Any

from layerpress_frame.program import Report

from . import cache
from .errors import ExportError, one_line
from .known_models import check_known
from .request import Request, parse_request
from .stored_tensors import stored_tensors
from .tied_heads import untie_own_head

FORMAT = "layerpress.graph.v1"


def answer(request: dict[str, Any], report: Report) -> dict[str, Any]:
    os.environ["HF_HUB_OFFLINE"] = "1"
    return export(parse_request(request))


def export(request: Request) -> dict:
    """Executes `request`; returns {"graph": folder, "cached": whether it was there}."""
    try:
        config = json.loads((request.folder / "config.json").read_bytes())
    except ValueError as fault:
        raise ExportError(f"{request.folder}/config.json: not JSON ({one_line(fault)})") from None
    if not isinstance(config, dict):
        raise ExportError(f"{request.folder}/config.json: not a JSON object")
    check_known(config, request.trust_remote_code)
    stored = stored_tensors(request.folder, request.tensors)
    place = cache.place_of(request, config, stored)
    cached = (place / "graph.json").is_file()
    if not cached:
        cache.require_writable(request.cache_folder)
        graph, constants = make_graph(request, stored)
        cache.store(place, graph, constants)
    return {"graph": str(place), "cached": cached}


def make_graph(request: Request, stored: dict) -> tuple[dict, dict]:
    """The graph file's JSON and the constants by name."""
    import torch

    from . import exporting, gates, lengths, skeleton
    from .serialization import Writer

    torch.set_num_threads(1)
    dtype = getattr(torch, request.dtype)
    config = skeleton.load_config(request.folder, request.trust_remote_code)
    images = any(getattr(config, name, None) is not None for name in ("vision_config", "audio_config"))
    model_class, config = skeleton.language_model(config, request.folder, request.trust_remote_code)
    own_head = untie_own_head(model_class, config, request.folder, stored)
    text = config.get_text_config()
    positions = int(getattr(text, "max_position_embeddings", None) or 0)
    made: dict[Writer, tuple] = {}

    def record(tokens: int) -> Writer:
        exported = exporting.export_model(model_class, config, dtype, images, tokens, [each.way for each, _ in made.values()])
        functions = gates.name_gates(exported.program, dtype)
        writer = Writer(exported.program, exported.skeleton.buffers)
        made[writer] = exported, functions
        return writer

    writer = lengths.recorded(record, positions or None)
    exported, functions = made[writer]
    graph = described(writer, exported.skeleton.model)
    add_sources(graph, exported.skeleton.model, stored)
    graph |= {"dtype": request.dtype, "class": model_class.__name__, "way": exported.way, "gates": functions,
              "vocab_size": int(text.vocab_size),
              "max_position_embeddings": positions, "rotary_tokens": exported.most,
              "tied_head": bool(getattr(text, "tie_word_embeddings", False)), "own_head": own_head, "head": head_of(exported.skeleton.model)}
    return graph, writer.constants


def described(writer, module) -> dict:
    """The graph file's JSON with all that follows from the exported program and its module."""
    from .token_proof import mark_mixing

    graph = writer.write()
    mark_mixing(graph)
    return graph | {"format": FORMAT, "least_tokens": writer.least, "most_tokens": writer.most, "linears": linear_modules(module),
                    "layer_classes": layer_classes(module, [path for path, _ in graph["modules"]])}


def add_sources(graph: dict, model, stored: dict) -> None:
    """Adds to every parameter what it is made of. Raises ExportError where the checkpoint lacks it."""
    from .parameters import parameter_sources

    sources = parameter_sources(model, stored)
    for parameter in graph["parameters"]:
        made = sources.get(parameter["name"])
        if made is None:
            raise ExportError(f"parameter '{parameter['name']}' is not in the checkpoint; complete the download, or use "
                              "the transformers release that wrote it")
        if made["shape"] != parameter["shape"]:
            raise ExportError(f"parameter '{parameter['name']}': the checkpoint's tensors make the shape {made['shape']}, "
                              f"the model has {parameter['shape']}; config.json belongs to another checkpoint")
        parameter |= {key: value for key, value in made.items() if key != "shape"}


def layer_classes(model, computed: list[str]) -> list[str]:
    """The classes of the modules that a model is cut at: those of the longest list of modules, not inside another, of which
    the graph computes some."""
    import torch

    lists = [(path, module) for path, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)
             and any(each.startswith(path + ".") for each in computed)]
    outer = [module for path, module in lists if not any(path.startswith(other + ".") for other, _ in lists)]
    longest: Any = max(outer, key=len, default=[])
    return sorted({type(layer).__name__ for layer in longest})


def head_of(model) -> str:
    """The module that makes the logits, or "" if the model does not name it."""
    head = model.get_output_embeddings()
    return next((path for path, module in model.named_modules() if module is head), "")


def linear_modules(model) -> list[str]:
    """Every module that multiplies with a weight of its own: those that recipes know as Linear, transposed ones, and those
    that hold the weights of several experts as one parameter."""
    import torch
    from transformers.pytorch_utils import Conv1D

    linears = (torch.nn.Linear, Conv1D)
    convolutions = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d)

    def stacks(module) -> bool:
        own = module.parameters(recurse=False)
        return not isinstance(module, convolutions) and any(parameter.dim() == 3 and min(parameter.shape) > 1 for parameter in own)

    return [path for path, module in model.named_modules() if isinstance(module, linears) or stacks(module)]
