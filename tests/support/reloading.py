"""Compressed models as transformers loads them, and how far they are from their originals."""

import json
import re

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file


class NotLoaded(RuntimeError):
    """transformers cannot load a compressed checkpoint, whatever lies in it."""


def logits(folder, samples, **options):
    """The logits of each sample, [tokens, vocabulary]. Raises NotLoaded if a tensor is missing or has no use. As for the original,
    attention is the model's own: other implementations leave out what PyTorch's lacks."""
    transformers.utils.logging.set_verbosity_error()
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, output_loading_info=True, attn_implementation="eager", **options)
    except Exception as fault:  # whatever a foreign loader does
        raise NotLoaded(f"{type(fault).__name__}: {fault}") from fault
    missing, unexpected = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if missing or unexpected:
        raise NotLoaded(f"missing {missing[:2]}, unexpected {unexpected[:2]}")
    with torch.no_grad():
        return [model(torch.tensor([list(sample)]), use_cache=False).logits[0].float() for sample in samples]


def decoded(folder, target):
    """The checkpoint as compressed-tensors decodes it, tensor by tensor, without any code of transformers' models."""
    from compressed_tensors.entrypoints.convert import CompressedTensorsDequantizer, convert_checkpoint

    # Its decoder expects scales of every module that is not ignored, even of embeddings and norms.
    modules = {name.rpartition(".")[::2] for file in folder.glob("*.safetensors") for name in safe_open(file, "pt").keys()}
    plain = {module for module, _ in modules} - {module for module, leaf in modules if leaf == "weight_scale"}
    decoder = CompressedTensorsDequantizer(str(folder), ignore=sorted(plain), dtype=torch.float32)
    convert_checkpoint(str(folder), str(target), decoder, device="cpu")
    config = json.loads((target / "config.json").read_text())
    assert "quantization_config" not in config
    restacked = stacked_experts(load_file(target / "model.safetensors"), config["model_type"])
    save_file(restacked, target / "model.safetensors", {"format": "pt"})
    return target


# Families whose experts transformers has in stacked tensors only, which parts of module.experts.N are not: what the tensors are
# called, whether a matrix has a row per input, and whether outputs of gate and up alternate.
STACKED = {"gpt_oss": ("experts.gate_up_proj", "experts.down_proj", True, True),
           **dict.fromkeys(("gemma4", "gemma4_text", "granitemoe_swa", "inkling_text", "zaya", "hy_v4", "minimax_m3_vl_text"),
                           ("experts.gate_up_proj", "experts.down_proj", False, False)),
           "qwen3_vl_moe": ("experts.gate_up_proj", "experts.down_proj", True, False),
           **dict.fromkeys(("granitemoe", "granitemoehybrid", "granitemoeshared"),
                           ("input_linear.weight", "output_linear.weight", False, False))}


def stacked_experts(tensors, model_type):
    """Tensors with those of single experts as transformers has them, where it has them in stacked tensors only."""
    if model_type not in STACKED:
        return tensors
    *names, transposed, alternating = STACKED[model_type]
    single = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)\.(weight|bias)")
    made, experts = {}, {}
    for name, tensor in tensors.items():
        if match := single.fullmatch(name):
            module, expert, part, leaf = match.groups()
            experts.setdefault((module, leaf), {}).setdefault(part, {})[int(expert)] = tensor
        else:
            made[name] = tensor
    for (module, leaf), parts in experts.items():
        gate, up, down = (torch.stack([parts[part][e] for e in range(len(parts[part]))])
                          for part in ("gate_proj", "up_proj", "down_proj"))
        both = torch.stack([gate, up], 2).flatten(1, 2) if alternating else torch.cat([gate, up], 1)
        for name, value in zip(names, (both, down), strict=True):
            made[f"{module}.{name}" + ("" if leaf == "weight" else "_bias")] = value.mT.contiguous() if transposed and leaf == "weight" else value
    return made


def divergence(compressed, original):
    """The mean KL divergence from the original's logits, and that of a model that knows nothing."""
    own, nothing, count = 0, 0, 0
    for mine, wanted in zip(compressed, original, strict=True):
        wanted = torch.log_softmax(torch.as_tensor(wanted), -1)
        assert mine.shape == wanted.shape
        each = lambda other: float((wanted.exp() * (wanted - torch.log_softmax(other, -1))).sum())
        own, nothing, count = own + each(mine), nothing + each(torch.zeros_like(mine)), count + len(wanted)
    return own / count, nothing / count
