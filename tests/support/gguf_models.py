"""Whole models as GGUF files in fp32: the tensors of a checkpoint at the places that print_gguf says."""

import torch

from support import gguf_facts, gguf_files, tiny_models


def rows_of(tensor, place):
    """The rows that the place takes; those of vectors in a stack are their last dimension."""
    parts, first, count = place["rows"]
    axis = tensor.dim() - (1 if place["name"].endswith(".bias") else 2)
    shape = list(tensor.shape)
    divided = tensor.reshape(shape[:axis] + [parts, shape[axis] // parts] + shape[axis + 1:]).narrow(axis + 1, first, count)
    return divided if place.get("stacked_parts") else divided.reshape(shape[:axis] + [parts * count] + shape[axis + 1:])


def placed(tensor, place):
    """What becomes of a tensor on the way to its place."""
    if place.get("transposed_first"):
        tensor = tensor.transpose(-1, -2)
    if "rows" in place:
        tensor = rows_of(tensor, place)
    if place.get("transposed_last"):
        tensor = tensor.transpose(-1, -2)
    if heads := place.get("paired_heads"):
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    tensor = tensor + place.get("added", 0)
    return (tensor.squeeze() if place.get("squeezed") else tensor).contiguous()


def write(folder, file):
    """The checkpoint in `folder` as a GGUF without a tokenizer."""
    tensors = {name: torch.as_tensor(tensor).float() for name, tensor in tiny_models.tensors(folder).items()}
    found = gguf_facts.architecture(folder / "config.json", tensors)
    written, stacks = {name: torch.tensor(values) for name, values in found["made"].items()}, {}
    for name, tensor in tensors.items():
        for place in found["tensors"][name]["places"]:
            if "expert" in place:
                stacks.setdefault(place["name"], {})[place["expert"]] = placed(tensor, place)
            else:
                written[place["name"]] = placed(tensor, place)
    for name, experts in stacks.items():
        written[name] = torch.stack([experts[number] for number in range(len(experts))])
    metadata = [*found["metadata"], ["tokenizer.ggml.model", ["string", "none"]]]
    if not any(key.endswith(".vocab_size") for key, _ in metadata):
        metadata.append([found["name"] + ".vocab_size", ["u32", tiny_models.VOCABULARY]])
    return gguf_files.write(file, found["name"], metadata, [(name, tensor.numpy()) for name, tensor in written.items()])
