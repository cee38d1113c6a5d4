"""Names, shapes and dtypes of a checkpoint's tensors. No tensor is read."""

from __future__ import annotations

import json
import struct
from pathlib import Path

from .errors import ExportError

# Parts of a compressed weight beside its codes, by suffix.
_PARTS = ("weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx", "weight_global_scale", "input_scale",
          "input_zero_point", "input_global_scale", "output_scale", "k_scale", "v_scale", "q_scale")
_MOST_HEADER = 512 << 20


def stored_tensors(folder: Path, config: dict) -> dict[str, tuple[str, list[int]]]:
    """{name: (safetensors' dtype, shape)}. A compressed weight appears as the plain weight that it stands for."""
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, entry in _header(path).items():
            if name != "__metadata__":
                found[name] = (str(entry["dtype"]), [int(size) for size in entry["shape"]])
    if not found:
        raise ExportError(f"{folder}: there are no *.safetensors files; convert the checkpoint to safetensors")
    return _as_plain(found, config.get("quantization_config") or config.get("compression_config"))


def _header(path: Path) -> dict:
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8).ljust(8, b"\0"))
        if size > min(_MOST_HEADER, path.stat().st_size):
            raise ExportError(f"{path}: the header is damaged; fetch the file again")
        return json.loads(file.read(size))


def _as_plain(found: dict, quantization: dict | None) -> dict:
    if not quantization:
        return found
    bits = [(group.get("weights") or {}).get("num_bits", 8) for group in (quantization.get("config_groups") or {}).values()]
    plain = {}
    for name, (dtype, shape) in found.items():
        module, _, leaf = name.rpartition(".")
        if leaf in _PARTS and (f"{module}.weight" in found or f"{module}.weight_packed" in found):
            continue
        if leaf == "weight_packed":
            per_word = {"I32": 32, "U8": 8}.get(dtype, 8) // (4 if dtype == "U8" else (bits or [4])[0])
            plain[f"{module}.weight"] = ("F32", [*shape[:-1], shape[-1] * per_word])
        else:
            plain[name] = (dtype, shape)
    return plain
