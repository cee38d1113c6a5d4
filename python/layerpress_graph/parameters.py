"""Which tensors of the checkpoint make each parameter, and by which operations: transformers' own conversion, recorded."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .errors import ExportError

_STORED = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float64,
           "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8,
           "BOOL": torch.bool}


class _Recorder(TorchDispatchMode):
    """Records every operation on tensors. Sources have their names, results have numbers."""

    def __init__(self, sources):
        super().__init__()
        self.names = {id(tensor): {"source": place} for place, tensor in enumerate(sources)}
        self.kept, self.steps = list(sources), []

    def describe(self, value):
        if isinstance(value, torch.Tensor):
            return self.names[id(value)]
        if isinstance(value, (list, tuple)):
            return [self.describe(each) for each in value]
        if isinstance(value, torch.dtype):
            return {"dtype": str(value).split(".")[1]}
        if isinstance(value, torch.memory_format):
            return {"memory_format": str(value).split(".")[1]}
        if isinstance(value, torch.device):
            return {"device": 1}
        return value

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given, arguments = kwargs or {}, []
        for place, argument in enumerate(function._schema.arguments):
            if place < len(args):
                arguments.append(self.describe(args[place]))
            else:
                arguments.append(self.describe(given[argument.name]) if argument.name in given else {"default": 1})
        while arguments and arguments[-1] == {"default": 1}:
            arguments.pop()
        several = isinstance(result, (list, tuple))
        outputs = []
        for each in result if several else [result]:
            self.names[id(each)] = {"made": len(self.kept)}
            outputs.append(len(self.kept))
            self.kept.append(each)
        self.steps.append({"op": str(function), "args": arguments, "outs": outputs, "several": several})
        return result


def parameter_sources(model, stored: dict[str, tuple[str, list[int]]]) -> dict[str, dict]:
    """{parameter: {"sources": [{"name", "shape"}], "steps": [...], "result": ...}} for all that the checkpoint has."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [entry for entry in mapping if isinstance(entry, WeightRenaming)]
    converters = [entry for entry in mapping if isinstance(entry, WeightConverter)]
    by_pattern = {pattern: entry for entry in converters for pattern in entry.source_patterns}
    known = model.state_dict()
    prefix = model.base_model_prefix
    loads: dict[str, Any] = {}
    sources: dict[str, list] = {}
    others = {key: key for key in stored}  # the keys that make no parameter, by what the model would call them
    for key in sorted(stored, key=dot_natural_key):
        target, pattern = rename_source_key(key, renamings, converters, prefix, known)
        if target not in known and key in known:
            target, pattern = rename_source_key(key, [], [], base_model_prefix=prefix, meta_state_dict=known)
        if target not in known:
            others.setdefault(target.removeprefix(f"{prefix}."), key)
            continue
        if pattern is None:
            load, pattern = loads.setdefault(target, WeightRenaming(key, target)), key
        else:
            load = loads.setdefault(target, deepcopy(by_pattern[pattern]))
        dtype, shape = stored[key]
        tensor = torch.empty(shape, dtype=_STORED.get(dtype, torch.float32), device="meta")
        sources.setdefault(target, []).append((key, tensor))
        load.add_tensor(target, key, pattern, tensor)
    found: dict[str, Any] = {}
    for first, load in loads.items():
        found |= _recorded(model, first, load, sources[first])
    found |= _linears_of_experts(model, stored, others, found)
    for target, made in found.items():
        made["splits"] = _parts_of_experts(model, target, made, converters)
    return _with_tied(model, found)


_PARTS = {"gate_up_proj": ["gate_proj", "up_proj"], "up_proj": ["up_proj"], "down_proj": ["down_proj"]}


def _linears_of_experts(model, stored, others: dict, found: dict) -> dict[str, dict]:
    """The stacked parameters whose experts the checkpoint has one by one, as engines and LLM Compressor have them, although
    transformers does not."""
    made = {}
    for name, parameter in model.named_parameters():
        module, _, leaf = name.rpartition(".")
        stem, suffix = (leaf[:-len("_bias")], "bias") if leaf.endswith("_bias") else (leaf, "weight")
        parts = _PARTS.get(stem, [])
        keys = [[f"{module}.{expert}.{part}.{suffix}" for expert in range(parameter.shape[0])] for part in parts]
        experts = model.get_submodule(module)
        if name in found or not keys or not hasattr(experts, "is_transposed") or not all(key in others for part in keys for key in part):
            continue
        names = [others[key] for part in keys for key in part]
        recorder = _Recorder([torch.empty(stored[key][1], device="meta") for key in names])
        with torch.no_grad(), recorder:
            stacks = [torch.stack(recorder.kept[place * len(part):(place + 1) * len(part)]) for place, part in enumerate(keys)]
            alternate = len(stacks) > 1 and not experts.is_concatenated
            value = torch.stack(stacks, 2).flatten(1, 2) if alternate else torch.cat(stacks, 1) if len(stacks) > 1 else stacks[0]
            value = value.transpose(1, 2) if suffix == "weight" and experts.is_transposed else value
        made[name] = _needed(recorder, names, value)
    return made


def _parts_of_experts(model, target: str, made: dict, converters: list) -> list[str]:
    """What transformers calls an expert's linears in a checkpoint, or in a quantized one, that has one by one what this one has in a
    stacked tensor; empty if it does not know them so."""
    from transformers.quantizers import base

    if len(made["shape"]) != 3 or len(made["sources"]) != 1:
        return []
    module, _, leaf = target.rpartition(".")
    if type(model.get_submodule(module)).__name__ in getattr(base, "MODULES_TO_PATCH_FOR_QUANTIZATION", {}):
        return _PARTS.get(leaf, [])
    for entry in converters:
        parts = [pattern.rpartition(".*.")[2].removesuffix(".weight") for pattern in entry.source_patterns if ".*." in pattern]
        if [target.endswith(pattern) for pattern in entry.target_patterns] == [True] and len(parts) == len(entry.source_patterns):
            return parts
    return []


def _recorded(model, first: str, load, sources) -> dict[str, dict]:
    recorder = _Recorder([tensor for _, tensor in sources])
    with torch.no_grad(), recorder:
        made = load.convert(first, model=model, config=model.config, hf_quantizer=None, loading_info=None)
    found = {}
    for target, value in made.items():
        value = value[0] if isinstance(value, list) else value
        if id(value) not in recorder.names:
            raise ExportError(f"parameter '{target}': its conversion could not be recorded")
        found[target] = _needed(recorder, [name for name, _ in sources], value)
    return found


def _needed(recorder, names: list[str], value) -> dict:
    """Only the sources and operations that the value needs."""
    needed, steps = [], []

    def read(argument) -> None:
        if isinstance(argument, list):
            for each in argument:
                read(each)
        elif isinstance(argument, dict) and ("made" in argument or "source" in argument):
            needed.append(argument)

    read(recorder.names[id(value)])
    for step in reversed(recorder.steps):
        if any({"made": out} in needed for out in step["outs"]):
            read(step["args"])
            steps.append(step)
    order = sorted({each["source"] for each in needed if "source" in each})
    places = {old: new for new, old in enumerate(order)}

    def moved(argument):
        if isinstance(argument, list):
            return [moved(each) for each in argument]
        if isinstance(argument, dict) and "source" in argument:
            return {"source": places[argument["source"]]}
        return argument

    return {"sources": [{"name": names[old], "shape": list(recorder.kept[old].shape)} for old in order],
            "steps": [{**step, "args": moved(step["args"])} for step in reversed(steps)],
            "result": moved(recorder.names[id(value)]), "shape": list(value.shape)}


def _with_tied(model, found: dict) -> dict:
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    for target, source in tied.items() if isinstance(tied, dict) else ():
        if target not in found and source in found:
            found[target] = {**found[source], "tied": source}
        elif source not in found and target in found:
            found[source] = {**found[target], "tied": target}
    return found
