"""Compresses SmolLM2 and layers of Qwen3-30B-A3B with the architecture that is written by hand and with the graph that PyTorch
exports, in turns, and prints time and agreement as Markdown. Nothing else should run meanwhile.

`benchmarks/imported` sets everything up first. The export itself is in the cache before anything is timed.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[1:1] = [str(ROOT / "benchmarks" / folder) for folder in ("peer_comparison", "mixtures")] + [
    str(ROOT / "examples" / "demo")]

from make_checkpoint import make  # noqa: E402
from measured_process import run_measured  # noqa: E402
from report import machine, table  # noqa: E402
from shared_options import add_shared_options, check_text, model_and_text, print_result  # noqa: E402

PROGRAM = Path(os.environ.get("LAYERPRESS_PROGRAM", ROOT / "build" / "layerpress"))
GRAPHS = ("builtin", "export")
MOST_RATIO, MOST_KL_RATIO = 1.05, 1.03


def parse_arguments():
    parser = argparse.ArgumentParser(prog="benchmarks/imported compare", description=__doc__)
    add_shared_options(parser, "each graph", "imported")
    parser.set_defaults(runs=3)
    parser.add_argument("--models", default="smollm2,qwen3-moe", help="which of smollm2, qwen3-moe (wide), qwen3-moe-small")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: all)")
    arguments = parser.parse_args()
    check_text(parser, arguments)
    return arguments


def environment(arguments):
    return {"XDG_CACHE_HOME": str(arguments.work / "cache"), "HF_HUB_OFFLINE": "1",
            "LAYERPRESS_PYTHON": os.environ.get("LAYERPRESS_PYTHON", sys.executable)}


def run_once(model, graph, text, output, arguments):
    command = [PROGRAM, "oneshot", model, "--model-graph", graph, "--scheme", "W4A16", "--group-size", arguments.group_size,
               "--dataset", text, "--num-calibration-samples", arguments.samples, "--max-seq-length", arguments.max_seq_length,
               "--output", output, "--overwrite", "--no-progress", "--log-level", "error",
               *(["--threads", arguments.threads] if arguments.threads else [])]
    return run_measured(list(map(str, command)), environment(arguments))


def divergence(model, compressed, evaluation, arguments):
    """Evaluated with the architecture that is written by hand, whichever graph has compressed the model."""
    command = [PROGRAM, "eval", compressed, "--reference", model, "--model-graph", "builtin", "--dataset", evaluation,
               "--num-samples", arguments.evaluation_samples, "--max-seq-length", arguments.max_seq_length, "--no-progress",
               "--log-level", "error"]
    return json.loads(run_measured(list(map(str, command)), environment(arguments)).output)["kl_divergence"]


def equal_tensors(folders):
    """(equal tensors, all tensors, whether all of the first layer are equal) of two outputs."""
    import torch
    from safetensors import safe_open

    files = [[safe_open(path, "pt") for path in sorted(folder.glob("*.safetensors"))] for folder in folders]
    mine, theirs = ({name: file for file in each for name in file.keys()} for each in files)
    if mine.keys() != theirs.keys():
        raise ValueError(f"the outputs have other tensors: {sorted(mine.keys() ^ theirs.keys())[:4]}")
    equal = {name for name in mine if torch.equal(mine[name].get_tensor(name), theirs[name].get_tensor(name))}
    first = {name for name in mine if ".layers.0.self_attn.q_proj." in name}
    return len(equal), len(mine), bool(first) and first <= equal


def compare(name, model, text, evaluation, arguments):
    """The row of one model."""
    outputs = {graph: arguments.work / f"{name}-{graph}" for graph in GRAPHS}
    subprocess.run([str(PROGRAM), "inspect", str(model), "--model-graph", "export"], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, **environment(arguments)})
    runs = {graph: [] for graph in GRAPHS}
    for turn in range(arguments.runs):
        for graph in GRAPHS if turn % 2 == 0 else reversed(GRAPHS):
            runs[graph].append(run_once(model, graph, text, outputs[graph], arguments))
            last = runs[graph][-1]
            print(f"{name}, {graph}: {last.seconds:.1f} s, {last.cpu_seconds:.1f} s of processor time", file=sys.stderr)
    clock, processor, memory = ({graph: statistics.median(getattr(run, figure) for run in runs[graph]) for graph in GRAPHS}
                                for figure in ("seconds", "cpu_seconds", "peak_bytes"))
    equal, whole, first = equal_tensors(outputs.values())
    kl = {graph: divergence(model, outputs[graph], evaluation, arguments) for graph in GRAPHS}
    ratio = clock["export"] / clock["builtin"]
    agree = equal == whole or (first and kl["export"] <= MOST_KL_RATIO * kl["builtin"])
    return [name, *(f"{clock[graph]:.2f}" for graph in GRAPHS), f"{ratio:.3f}", f"{processor['export'] / processor['builtin']:.3f}",
            "yes" if ratio <= MOST_RATIO else "no", f"{memory['export'] / memory['builtin']:.3f}", f"{equal} of {whole}",
            "yes" if first else "no", *(f"{kl[graph]:.4f}" for graph in GRAPHS), "yes" if agree else "no"]


def measure(arguments):
    smollm2, text, evaluation = model_and_text(arguments, None)
    rows = []
    for name in arguments.models.split(","):
        shape = {"qwen3-moe": "wide", "qwen3-moe-small": "small"}.get(name)
        model = smollm2 if shape is None else make(arguments.work / shape, shape, smollm2)
        rows.append(compare(name, model, text, evaluation, arguments))
    heads = ["", "builtin, s", "export, s", "ratio", "of processor time", f"at most {MOST_RATIO}", "of memory", "equal tensors",
             "first group equal", "KL, builtin", "KL, export", f"equal, or the first group and KL within {MOST_KL_RATIO}"]
    return (f"W4A16 in groups of {arguments.group_size}, {arguments.samples} samples of up to {arguments.max_seq_length} tokens, "
            f"median of {arguments.runs} runs in turns, on {machine()}.\n\n{table(heads, rows)}\n")


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
