"""Runs recipes with LLM Compressor and Layerpress, in turns, and prints times and memory as Markdown.

    .venv/bin/python benchmarks/peer_comparison/compare_recipe.py [RECIPE ...]

The YAML files beside this file, such as awq.yaml and sparsegpt.yaml, are such recipes.

The program must be built and LLM Compressor installed (scripts/setup --peer).
"""
import argparse
import os
import statistics
import sys
from pathlib import Path

# Also uses the demo's model and its measurement of processes.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from contenders import HERE, INSTRUCTION_SETS, OFFLINE, PEER_PYTHON, PROGRAM, peer_dtype
from measured_process import run_measured
from shared_options import add_cpu_option, add_shared_options, check_text, model_and_text, print_result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", type=Path, nargs="*", default=[HERE / "smoothquant_w8a8.yaml"], metavar="RECIPE")
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    add_shared_options(parser, "both programs", "recipe_comparison")
    add_cpu_option(parser)
    arguments = parser.parse_args()
    check_text(parser, arguments)
    return arguments


def commands(recipe: Path, arguments: argparse.Namespace, model: Path, calibration: Path) -> dict[str, list[str]]:
    recipe, work = recipe.resolve(), arguments.work.resolve()
    samples, length = str(arguments.samples), str(arguments.max_seq_length)
    return {
        "LLM Compressor": [str(PEER_PYTHON), str(HERE / "peer_oneshot.py"), "--model", str(model), "--calibration",
                           str(calibration), "--output", str(work / "peer"), "--summary", str(work / "peer.json"),
                           "--recipe", str(recipe), "--samples", samples, "--max-seq-length", length, "--dtype",
                           peer_dtype(arguments.cpu)],
        "Layerpress": [str(PROGRAM), "oneshot", str(model), "--output", str(work / "own"), "--overwrite", "--no-progress",
                       "--recipe", str(recipe), "--dataset", str(calibration), "--num-calibration-samples", samples,
                       "--max-seq-length", length],
    }


def compare(arguments: argparse.Namespace) -> str:
    model, calibration, _ = model_and_text(arguments, arguments.model)
    return "\n".join(compare_one(recipe, arguments, model, calibration) for recipe in arguments.recipes)


def compare_one(recipe: Path, arguments: argparse.Namespace, model: Path, calibration: Path) -> str:
    turns = commands(recipe, arguments, model, calibration)
    runs, loads = {name: [] for name in turns}, []
    environment = OFFLINE | INSTRUCTION_SETS.get(arguments.cpu, {})
    for _ in range(arguments.runs):
        for name, command in turns.items():
            loads.append(os.getloadavg()[0])
            runs[name].append(run_measured(command, environment, arguments.work / f"{name}.log"))
    seconds = {name: statistics.median(run.seconds for run in own) for name, own in runs.items()}
    lines = [f"{recipe.name}, {model.name}, {arguments.samples} x {arguments.max_seq_length} tokens; load before "
             f"each run: {', '.join(f'{load:.1f}' for load in loads)}", "", "| program | seconds | CPU seconds | peak MiB |",
             "|---|---|---|---|"]
    for name, own in runs.items():
        cpu = statistics.median(run.cpu_seconds for run in own)
        lines.append(f"| {name} | {seconds[name]:.1f} | {cpu:.1f} | {max(run.peak_bytes for run in own) / 2**20:.0f} |")
    ratio = seconds["LLM Compressor"] / seconds["Layerpress"]
    return "\n".join([*lines, "", f"LLM Compressor takes {ratio:.1f} times as long.", ""])


if __name__ == "__main__":
    sys.exit(print_result(compare, parse_arguments()))
