"""LLM Compressor's model_free_ptq(): a checkpoint is compressed without data."""

from __future__ import annotations

import os
from typing import Any, Iterable, Optional

from .errors import UsageError
from .modifiers import QuantizationModifier, plain
from .progress import logger
from .reports import Summary
from .runs import oneshot

# Options of oneshot() that this call says otherwise.
_OWN = {"recipe": "pass scheme or config", "output_dir": "pass save_directory", "pipeline": "it is always datafree",
        "dataset": "no data is used; call oneshot()",
        **dict.fromkeys(("group_size", "observer"), "pass a QuantizationScheme as scheme, whose weights say this"),
        **dict.fromkeys(("algorithm", "quality"), "weights are rounded to nearest; call oneshot()")}

# Of compressed-tensors: what they do is done while weights are read.
_READERS = ("AutoAWQConverter", "CompressedTensorsDequantizer", "FP8BlockDequantizer", "ModelOptNvfp4Converter")


def model_free_ptq(model_stub: str | os.PathLike, save_directory: str | os.PathLike, scheme: Any = None, config: Any = None,
                   ignore: str | Iterable[str] = (), max_workers: int = 1, device: Any = None, converter: Any = None,
                   **options: Any) -> Summary:
    """Compresses a checkpoint, a folder or an id, without data: the weights are rounded to nearest, layer by layer.

    `scheme` is a preset's name or a QuantizationScheme with its targets; `config`, in its place, a QuantizationConfig. Sources that
    are quantized are dequantized while they are read, so that `converter` is not needed for them. `options` are oneshot()'s.
    `max_workers` has no effect: a run uses all cores, or `threads`.
    """
    if (scheme is None) == (config is None):
        raise UsageError("[python.model_free_ptq] scheme, config: pass one of the two")
    for name in options:
        if name in _OWN:
            raise UsageError(f"[python.model_free_ptq] {name}: {_OWN[name]}")
    if converter is not None and type(converter).__name__ not in _READERS:
        raise UsageError(f"[python.model_free_ptq] converter: a {type(converter).__name__} is not possible; leave it out where it "
                         "dequantizes: Layerpress reads quantized checkpoints itself")
    given = {"download": not _is_offline(model_stub), "device": _device(device), **options}
    ignored = [ignore] if isinstance(ignore, str) else list(ignore or ())
    return oneshot(os.fspath(model_stub), recipe=_recipe(scheme, config, ignored), output_dir=os.fspath(save_directory), pipeline="datafree",
                   **given)


def _recipe(scheme: Any, config: Any, ignore: list[str]) -> QuantizationModifier:
    if isinstance(scheme, str):
        return QuantizationModifier(targets="Linear", scheme=scheme, ignore=ignore)
    if config is None:
        return QuantizationModifier(config_groups={"group_0": scheme}, ignore=ignore)
    values = plain(config)
    cache = {"kv_cache_scheme": values["kv_cache_scheme"]} if values.get("kv_cache_scheme") else {}
    return QuantizationModifier(config_groups=values["config_groups"], ignore=[*(values.get("ignore") or []), *ignore], **cache)


def _device(device: Any) -> Optional[str]:
    """The first one; the CPU, which gives the same result, where there is no GPU."""
    import torch

    first = device[0] if isinstance(device, (list, tuple)) else device
    if first is None:
        return None
    if str(first).startswith("cuda") and not torch.cuda.is_available():
        logger.warning("device=%r: this machine has no GPU that torch can use; the CPU is used", device)
        return "cpu"
    if isinstance(device, (list, tuple)) and len(device) > 1:
        logger.info("device: one device is enough; %s is used", first)
    return str(first)


def _is_offline(model: str | os.PathLike) -> bool:
    """Whether nothing is to be fetched."""
    from huggingface_hub import constants

    return os.path.isdir(model) or constants.HF_HUB_OFFLINE
