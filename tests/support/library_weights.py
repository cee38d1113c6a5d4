"""The tensors that compressed-tensors itself makes of a weight, as LLM Compressor calls it: ranges, scales, codes."""

import json

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

from support import tiny_models

FAMILIES = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("w1", "w3")]


def family_of(module, weights):
    """The modules that engines fuse with this one, itself included, and that are there."""
    parent, leaf = module.rsplit(".", 1)
    for family in FAMILIES:
        if leaf in family:
            return [f"{parent}.{name}" for name in family if f"{parent}.{name}" in weights]
    return [module]


def cut(weight, args):
    """The weight as its scales are, and the elements of each."""
    if args.strategy == "tensor":
        return weight.reshape(1, -1)
    if args.strategy == "channel":
        return weight.unsqueeze(1)
    if args.strategy == "block":
        rows, columns = args.block_structure
        return weight.unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).transpose(1, 2).flatten(2)
    return weight.unflatten(-1, (-1, args.group_size))


def whole_ranges(groups, args):
    """LLM Compressor's min-max observer."""
    return groups.amin(-1), groups.amax(-1)


def made_by_the_library(module, weights, scheme, ranges=whole_ranges):
    """The tensors that the library stores for a module, from ranges of its groups."""
    args, weight = scheme.weights, weights[module]
    groups = lambda name: cut(weights[name], args)
    state = {"weight": weight}
    least, most = ranges(groups(module), args)
    if args.strategy == "tensor_group":
        largest = max(max(-low.min(), high.max()) for low, high in
                      (ranges(groups(name), args) for name in family_of(module, weights))).reshape(1)
        state["weight_global_scale"] = generate_gparam(-largest, largest)
    scale, zero_point = calculate_qparams(least, most, args, state.get("weight_global_scale"))
    state |= {"weight_scale": scale, "weight_zero_point": zero_point}
    return BaseCompressor.get_value_from_registry(scheme.format).compress(state, scheme)


def compressed_modules(tensors):
    return [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]


def shares_of_equal_bytes(model, folder, ranges=whole_ranges):
    """By kind of tensor, of a checkpoint with one config group; and what can be printed about it."""
    [group] = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
    scheme, written, originals = QuantizationScheme.model_validate(group), tiny_models.tensors(folder), tiny_models.tensors(model)
    weights = {module: originals[f"{module}.weight"] for module in compressed_modules(written)}
    equal, all_of_them = {}, {}
    for module in weights:
        for suffix, wanted in made_by_the_library(module, weights, scheme, ranges).items():
            ours = written[f"{module}.{suffix}"]
            assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), (module, suffix)
            same = ours.flatten().view(torch.uint8) == wanted.contiguous().flatten().view(torch.uint8)
            equal[suffix] = equal.get(suffix, 0) + int(same.sum())
            all_of_them[suffix] = all_of_them.get(suffix, 0) + same.numel()
    shares = {suffix: equal[suffix] / all_of_them[suffix] for suffix in equal}
    said = ", ".join(f"{suffix} {share:.4%} of {all_of_them[suffix]} bytes" for suffix, share in sorted(shares.items()))
    return shares, f"{scheme.format}: {len(weights)} modules, {said}"
