"""What benchmarks/quality compares: number formats and modes, as recipes of Layerpress and LLM Compressor."""
import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional


def integers(bits: int, **more) -> dict:
    return {"config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": bits, **more}}}}


INTEGERS = {
    "W4 group 32": integers(4, strategy="group", group_size=32),
    "W4 group 64": integers(4, strategy="group", group_size=64),
    "W4 channel": integers(4, strategy="channel"),
    "W3 group 64": integers(3, strategy="group", group_size=64),
    "W2 group 64": integers(2, strategy="group", group_size=64),
    "W4 asymmetric group 64": integers(4, symmetric=False, strategy="group", group_size=64),
    "W3 asymmetric group 64": integers(3, symmetric=False, strategy="group", group_size=64),
    "W2 asymmetric group 64": integers(2, symmetric=False, strategy="group", group_size=64),
}
# Those that quantize inputs, too: presets, whose weights are those of NVFP4A16, MXFP4A16 and MXFP8A16, and integers.
WITH_INPUTS = {name: {"scheme": name} for name in ("NVFP4", "MXFP4", "MXFP8", "FP8")}
WITH_INPUTS["W4A4 group 64"] = integers(4, strategy="group", group_size=64)
WITH_INPUTS["W4A4 group 64"]["config_groups"]["group_0"]["input_activations"] = {"num_bits": 4, "strategy": "token", "dynamic": True}
DENSE = "dense"  # weights stay as they are, or as pruned
FORMATS = INTEGERS | WITH_INPUTS | {DENSE: {}}

QUALITIES = ["fast", "balanced", "best"]
# Before a mode: SpinQuant's rotations first, both in blocks of so many channels, or one of them; or the head moved.
PREPARED = re.compile(r"(rotated(\d*)|R1|R2|head):(.*)")
PRUNED = re.compile(r"(sparsegpt|wanda)(2of4)?(:.*)?")  # half of all weights, or 2 of 4; alone, or before a mode
PRUNING = {"sparsegpt": "SparseGPTModifier", "wanda": "WandaPruningModifier"}
PROPAGATION = ["strength", "damping", "residual"]
FOUR_OVER_SIX = "rtn-four-over-six"
OBSERVER_OF_ROUNDING = {"rtn": None, "rtn-minmax": "minmax", "rtn-expanded": "nvfp4_expanded_mse",
                        FOUR_OVER_SIX: "minmax"}
PEER = {
    "peer-rtn": ("QuantizationModifier", {}),
    "peer-rtn-expanded": ("QuantizationModifier", {"weight_observer": "nvfp4_expanded_mse"}),
    "peer-gptq": ("GPTQModifier", {}),
    "peer-gptq-mse": ("GPTQModifier", {"weight_observer": "mse"}),
    "peer-autoround": ("AutoRoundModifier", {"iters": 200, "enable_torch_compile": False}),
    "peer-gptq-expanded": ("GPTQModifier", {"weight_observer": "nvfp4_expanded_mse"}),
}


@dataclass
class Mode:
    """How a format's weights are found."""
    name: str
    modifier: str
    arguments: dict
    quality: str = "balanced"
    by_peer: bool = False
    before: Optional[dict] = None  # the modifiers before it


def parse_mode(name: str) -> Mode:
    """A name of the tables above, or a quality with other settings: max; best,strength=0.5,damping=0.1; best is left out, too."""
    if prepared := PREPARED.fullmatch(name):
        after = parse_mode(prepared[3])
        rotation: dict = {"transform_block_size": int(prepared[2])} if prepared[2] else {}
        if prepared[1] in ("R1", "R2"):
            rotation["rotations"] = [prepared[1]]
        before = {"ErrorPropagationModifier": {}} if prepared[1] == "head" else {"SpinQuantModifier": rotation}
        return replace(after, name=name, before={**before, **(after.before or {})})
    if pruned := PRUNED.fullmatch(name):
        pruning = {"sparsity": 0.5, "mask_structure": "2:4" if pruned[2] else "0:0", "ignore": ["lm_head"]}
        after = parse_mode(pruned[3][1:]) if pruned[3] else Mode(name, "", {})
        return replace(after, name=name, before={PRUNING[pruned[1]]: pruning})
    if name in PEER:
        return Mode(name, *PEER[name], by_peer=True)
    if name in OBSERVER_OF_ROUNDING:
        observer = OBSERVER_OF_ROUNDING[name]
        return Mode(name, "QuantizationModifier", {"weight_observer": observer} if observer else {})
    parts = name.split(",")
    quality = parts.pop(0) if parts[0] in [*QUALITIES, "max"] else "best"
    added: dict = {}
    for key, value in (part.split("=") for part in parts):
        if key in PROPAGATION:
            added.setdefault("error_propagation", {})[key] = float(value)
        else:
            added[key] = value if key == "observer" else value == "true" if value in ("true", "false") else float(value)
    return Mode(name, "GPTQModifier", added, quality)


def is_pruned(name: str) -> bool:
    return PRUNED.fullmatch(name) is not None


def write_recipe(path: Path, number_format: str, mode: Mode, left: Optional[list[str]] = None) -> Path:
    """`left`: further modules that stay as they are."""
    modifiers = dict(mode.before or {})
    if number_format != DENSE:
        modifiers[mode.modifier] = {"ignore": ["lm_head", *(left or [])], **FORMATS[number_format], **mode.arguments}
    path.write_text(json.dumps({"quality_stage": {"quality_modifiers": modifiers}}), encoding="utf-8")
    return path
