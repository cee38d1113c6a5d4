"""How much of the masks of pruned weights equals LLM Compressor's, with one pass for each layer and with its two, as Markdown. And how much of
LLM Compressor's own does where PyTorch adds in another order, with AVX2.

    .venv/bin/python benchmarks/peer_comparison/equal_masks.py [RECIPE ...]

Runs both programs in fp32 on the same samples, each on one thread, so that PyTorch adds in one order, and compares where the written weights are
zero. Needs .venv-peer (scripts/setup --peer).
"""
import argparse
import sys
from pathlib import Path

import torch
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from compare_recipe import commands
from contenders import HERE, INSTRUCTION_SETS, OFFLINE
from measured_process import run_measured
from shared_options import add_shared_options, check_text, model_and_text, print_result

PIPELINES = ("sequential", "two_pass")
ONE_THREAD = OFFLINE | {"OMP_NUM_THREADS": "1"}


def masks(folder: Path) -> dict[str, torch.Tensor]:
    """Where each linear's weight is zero."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, "pt") as file:
            found |= {name: file.get_tensor(name) == 0 for name in file.keys() if name.endswith("_proj.weight")}
    return found


def shares(own: dict[str, torch.Tensor], peer: dict[str, torch.Tensor]) -> str:
    """Of equal places: in all weights, and in the linear with the fewest."""
    if own.keys() != peer.keys():
        raise ValueError(f"the programs wrote different linears: {sorted(own.keys() ^ peer.keys())[:4]}")
    equal = {name: (own[name] == mask) for name, mask in peer.items()}
    all_equal = sum(int(each.sum()) for each in equal.values()) / sum(each.numel() for each in equal.values())
    name, fewest = min(((name, each.double().mean().item()) for name, each in equal.items()), key=lambda entry: entry[1])
    return f"{100 * all_equal:.3f} % | {100 * fewest:.3f} % | {name.removeprefix('model.layers.').removesuffix('.weight')}"


def compare(arguments: argparse.Namespace) -> str:
    model, calibration, _ = model_and_text(arguments, arguments.model)
    lines = ["| recipe | by | equal | least equal | linear |", "|---|---|---|---|---|"]
    for recipe in arguments.recipes:
        turns = commands(recipe, arguments, model, calibration)
        run_measured([*turns["LLM Compressor"], "--dtype", "float32"], ONE_THREAD, arguments.work / "peer.log")
        expected = masks(arguments.work / "peer")
        run_measured([*turns["LLM Compressor"], "--dtype", "float32"], ONE_THREAD | INSTRUCTION_SETS["avx2"], arguments.work / "peer.log")
        lines.append(f"| {recipe.name} | LLM Compressor with AVX2 | {shares(masks(arguments.work / 'peer'), expected)} |")
        for pipeline in PIPELINES:
            run_measured([*turns["Layerpress"], "--dtype", "fp32", "--pipeline", pipeline], ONE_THREAD, arguments.work / "own.log")
            lines.append(f"| {recipe.name} | {pipeline} | {shares(masks(arguments.work / 'own'), expected)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    recipes = [HERE / "wanda.yaml", HERE / "wanda_2of4.yaml", HERE / "sparsegpt_2of4.yaml"]
    parser.add_argument("recipes", type=Path, nargs="*", default=recipes, metavar="RECIPE")
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    add_shared_options(parser, "both programs", "equal_masks")
    parser.set_defaults(cpu=None)
    arguments = parser.parse_args()
    check_text(parser, arguments)
    return print_result(compare, arguments)


if __name__ == "__main__":
    sys.exit(main())
