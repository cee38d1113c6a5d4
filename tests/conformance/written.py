"""What a compressed checkpoint is compared by, in few bytes."""

import hashlib
import json

# What compressed-tensors takes where a key is missing; records leave such keys out.
ARGUMENTS = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "tensor", "group_size": None, "block_structure": None,
             "dynamic": False, "actorder": None, "scale_dtype": None, "zp_dtype": None, "observer": None, "observer_kwargs": {}}
GROUP = {"targets": [], "weights": None, "input_activations": None, "output_activations": None, "format": None}
CONFIG = {"config_groups": {}, "format": "pack-quantized", "global_compression_ratio": None, "ignore": [],
          "kv_cache_scheme": None, "quant_method": "compressed-tensors", "quantization_status": "compressed",
          "sparsity_config": {}, "transform_config": {}, "version": "0.19.0"}
PARTS = ("weights", "input_activations", "output_activations")


def without_defaults(values, defaults):
    """Only what differs; a key that the defaults do not know, or one that is missing, is an error."""
    assert set(values) == set(defaults), sorted(set(values) ^ set(defaults))
    return {key: value for key, value in values.items() if value != defaults[key]}


def short_config(config):
    """A quantization_config without what is always the same."""
    short = without_defaults(config, CONFIG)
    for name, group in short.get("config_groups", {}).items():
        short["config_groups"][name] = without_defaults(
            {key: without_defaults(value, ARGUMENTS) if key in PARTS and value is not None else value
             for key, value in group.items()}, GROUP)
    return short


def read_tensors(path):
    """Names, dtypes, shapes and bytes of a safetensors file."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[end:][slice(*entry["data_offsets"])])
            for name, entry in header.items()}


def layout(tensors, original):
    """What became of the modules whose tensors changed: what they hold now -> modules."""
    modules, kinds = {}, {}
    for name, (dtype, shape, data) in sorted(tensors.items()):
        if name not in original or original[name] != (dtype, shape, data):
            module, _, suffix = name.rpartition(".")
            modules.setdefault(module, []).append(f"{suffix} {dtype} {'x'.join(map(str, shape))}")
    for module, parts in modules.items():
        kinds.setdefault("; ".join(parts), []).append(module)
    return {kind: " ".join(names) for kind, names in kinds.items()}


def digest(tensors, suffix):
    """Of the bytes of all tensors of one kind."""
    found = hashlib.sha256()
    for name, (_, _, data) in sorted(tensors.items()):
        if name.endswith(suffix):
            found.update(name.encode() + b"\0" + data)
    return found.hexdigest()[:16]


def summary(config, tensors, original):
    """All of it, for one recipe."""
    config = short_config(config)
    return {"ignore": config.pop("ignore", []), "config": config, "layout": layout(tensors, original),
            "scales": digest(tensors, "weight_scale"), "zero_points": digest(tensors, "weight_zero_point")}
