"""How much of what rounding to nearest gives equals LLM Compressor's result: scales, zero points and codes, as Markdown.

Runs both programs on one checkpoint without data, in bf16 and for the mse observer in fp32, too, and compares the tensors
that they have written. Needs .venv-peer (scripts/setup --peer). The figures do not depend on the machine.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
from safetensors import safe_open
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from contenders import OFFLINE, PEER_PYTHON, PROGRAM, ROOT

HERE = Path(__file__).resolve().parent
TOKEN = {"num_bits": 8, "symmetric": True, "strategy": "token", "dynamic": True}
INT8, FP8 = {**TOKEN, "type": "int"}, {**TOKEN, "type": "float"}


def weights(bits, strategy, **more):
    return {"num_bits": bits, "type": "int", "symmetric": True, "strategy": strategy, **more}


SCHEMES = {
    "W4A16, group 64": (weights(4, "group", group_size=64), None),
    "W4A16 asymmetric, group 64": (weights(4, "group", group_size=64, symmetric=False), None),
    "W8A16, group 64": (weights(8, "group", group_size=64), None),
    "W8A16 asymmetric, group 64": (weights(8, "group", group_size=64, symmetric=False), None),
    "W8A8, channel": (weights(8, "channel"), INT8),
    "FP8, channel": (weights(8, "channel", type="float"), FP8),
    "FP8, block 128 x 128": (weights(8, "block", type="float", block_structure=[128, 128]), FP8),
}


class Stored:
    """The tensors of a compressed checkpoint."""

    def __init__(self, folder: Path):
        self.tensors = {}
        for path in folder.glob("*.safetensors"):
            self.tensors |= load_file(path)
        scales = [name for name in self.tensors if name.endswith(".weight_scale")]
        self.modules = sorted(name.removesuffix(".weight_scale") for name in scales)

    def scale(self, module):
        return self.tensors[module + ".weight_scale"]

    def codes(self, module, bits):
        packed = self.tensors.get(module + ".weight_packed")
        if packed is None:
            return self.tensors[module + ".weight"].view(torch.int8)
        return unpack_from_int32(packed, bits, torch.Size(self.tensors[module + ".weight_shape"].tolist()))

    def zero_point(self, module, bits):
        """Integers [rows, groups], or None."""
        stored = self.tensors.get(module + ".weight_zero_point")
        if stored is None or stored.dtype == torch.int8:
            return stored
        return unpack_from_int32(stored, bits, self.scale(module).shape, packed_dim=0)


def run(command, log: Path) -> None:
    with log.open("w") as output:
        ended = subprocess.run(command, stdout=output, stderr=output, env={**os.environ, **OFFLINE}, check=False)
    if ended.returncode != 0:
        raise SystemExit(f"{command[0]} failed:\n{log.read_text()[-2000:]}")


def compressed(model: Path, scheme: str, observer: str, dtype: str, work: Path) -> tuple[Stored, Stored]:
    """What LLM Compressor makes of the model, and what Layerpress makes."""
    args, activations = SCHEMES[scheme]
    group = {"targets": ["Linear"], "weights": {**args, "observer": observer}, "input_activations": activations}
    folder = work / f"{scheme}-{observer}-{dtype}".replace(" ", "-")
    folder.mkdir()
    run([PEER_PYTHON, HERE / "peer_rounding.py", "--model", model, "--output", folder / "peer", "--dtype", dtype,
         "--group", json.dumps(group)], folder / "peer.log")
    modifier = {"QuantizationModifier": {"config_groups": {"group_0": group}, "ignore": ["lm_head"]}}
    (folder / "recipe.json").write_text(json.dumps({"quant_stage": {"quant_modifiers": modifier}}))
    run([PROGRAM, "oneshot", model, "--output", folder / "own", "--recipe", folder / "recipe.json"], folder / "own.log")
    return Stored(folder / "peer"), Stored(folder / "own")


def share(equal) -> str:
    equal = torch.cat([each.flatten() for each in equal]).double().mean().item()
    return "100 %" if equal == 1 else f"{100 * min(equal, 0.99999):.3f} %"


def row(model: Path, scheme: str, observer: str, dtype: str, work: Path) -> str:
    peer, own = compressed(model, scheme, observer, dtype, work)
    assert peer.modules == own.modules
    bits = SCHEMES[scheme][0]["num_bits"]
    scales, zero_points, codes = [], [], []
    for module in peer.modules:
        scales.append(peer.scale(module) == own.scale(module))
        codes.append(peer.codes(module, bits) == own.codes(module, bits))
        if peer.zero_point(module, bits) is not None:
            zero_points.append(peer.zero_point(module, bits) == own.zero_point(module, bits))
    return (f"| {scheme} | {observer.removeprefix('memoryless_')} | {dtype} | {share(scales)} | "
            f"{share(zero_points) if zero_points else ''} | {share(codes)} |")


def converted(model: Path, dtype: torch.dtype, folder: Path) -> Path:
    """The checkpoint in another dtype."""
    folder.mkdir()
    for path in model.iterdir():
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                save_file({name: file.get_tensor(name).to(dtype) for name in file.keys()}, folder / path.name,
                          metadata={"format": "pt"})
        elif path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config |= {key: str(dtype).removeprefix("torch.") for key in ("dtype", "torch_dtype") if key in config}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct",
                        help="a bf16 checkpoint with one file of weights")
    arguments = parser.parse_args()
    print("| scheme | observer | dtype | scales | zero points | codes |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as work:
        wide = converted(arguments.model, torch.float32, Path(work) / "fp32")
        for scheme in SCHEMES:
            print(row(arguments.model, scheme, "memoryless_minmax", "bfloat16", Path(work)), flush=True)
        for dtype, model in (("float32", wide), ("bfloat16", arguments.model)):
            for scheme in SCHEMES:
                print(row(model, scheme, "memoryless_mse", dtype, Path(work)), flush=True)


if __name__ == "__main__":
    main()
