"""Mixed precision at equal stored bits: oneshot --target-bits beside the scores that others choose by, on one model and one text.

    .venv/bin/python benchmarks/quality/mixed_precision.py MODEL --calibration A.jsonl --evaluation B.jsonl

All choices solve the same integer program, over the same units with bits as stored, and are compressed by the same program on the same
samples. Only the score of a scheme in a unit differs:

higgs     LLM Compressor's get_higgs_config: the mean squared error of the weight times ln(elements + 1), (1 + 0.05 depth), and 1.2 in
          attention, 0.9 in MLPs
gradient  ModelOpt's AutoQuantize: the sum over tokens and channels of the squared gradient of the loss at a linear's output times the
          squared error of that output
"""
import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "demo"), str(ROOT / "benchmarks" / "peer_comparison"), str(ROOT / "tests")]

from contenders import OFFLINE, PROGRAM  # noqa: E402
from report import machine, table  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from support.reference import Stored  # noqa: E402

Losses = list[dict[str, float]]  # of each unit, by scheme


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="checkpoint folder of a dense model")
    parser.add_argument("--calibration", type=Path, required=True, help="JSON lines with `text`")
    parser.add_argument("--evaluation", type=Path, required=True, help="JSON lines with `text`")
    parser.add_argument("--schemes", nargs="+", default=["W3A16", "W4A16", "W8A16"], help="default: W3A16 W4A16 W8A16")
    parser.add_argument("--group-size", type=int, default=64, help="columns per scale of integers (default 64)")
    parser.add_argument("--bits", nargs="+", type=float, default=[3.75, 4.5, 5.5], help="budgets (default 3.75 4.5 5.5)")
    parser.add_argument("--algorithms", nargs="+", default=["gptq"], choices=["gptq", "rtn"], help="default: gptq")
    parser.add_argument("--scores", nargs="+", default=["higgs", "gradient"], choices=["higgs", "gradient"], help="default: both")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples (default 32)")
    parser.add_argument("--max-seq-length", type=int, default=512, help="tokens per sample at most (default 512)")
    parser.add_argument("--evaluation-samples", type=int, default=24, help="samples to evaluate on (default 24)")
    parser.add_argument("--threads", type=int, default=0, help="default: all cores")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "mixed-precision", help="folder for all outputs")
    return parser.parse_args()


class Runs:
    """Runs of the program on the model and the texts."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.threads = ["--threads", str(arguments.threads)] if arguments.threads else []
        free = [scheme for scheme in arguments.schemes if re.fullmatch(r"W\dA16(_ASYM)?", scheme)]
        self.group_size = {scheme: ["--group-size", str(arguments.group_size)] for scheme in free}

    def call(self, *words: Any) -> str:
        done = subprocess.run([str(PROGRAM), *map(str, words), *self.threads], capture_output=True, text=True, env={**os.environ, **OFFLINE})
        if done.returncode != 0:
            sys.exit(done.stderr.strip().splitlines()[-1])
        return done.stdout

    def compress(self, name: str, *words: Any) -> dict[str, Any]:
        """The summary of a run whose result is the folder `name`."""
        given, summary = self.arguments, self.arguments.work / f"{name}.json"
        shutil.rmtree(given.work / name, ignore_errors=True)
        self.call("oneshot", given.model, "--output", given.work / name, "--overwrite", "--summary", summary, "--report", "none", *words)
        return json.loads(summary.read_text(encoding="utf-8"))

    def calibrated(self, name: str, *words: Any) -> dict[str, Any]:
        given = self.arguments
        return self.compress(name, *words, "--dataset", given.calibration, "--num-calibration-samples", given.samples,
                             "--max-seq-length", given.max_seq_length)

    def divergence(self, name: str) -> float:
        given = self.arguments
        return json.loads(self.call("eval", given.work / name, "--reference", given.model, "--dataset", given.evaluation, "--num-samples",
                                    given.evaluation_samples, "--max-seq-length", given.max_seq_length, "--dtype", "fp32"))["kl_divergence"]

    def uniform(self, scheme: str) -> dict[str, Any]:
        """The group of config.json for a scheme, and the rounded weights of all linears."""
        self.compress(f"rounded-{scheme}", "--algorithm", "rtn", "--scheme", scheme, *self.group_size.get(scheme, []))
        folder = self.arguments.work / f"rounded-{scheme}"
        [group] = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
        tensors: dict[str, torch.Tensor] = {}
        for file in folder.glob("*.safetensors"):
            tensors.update(load_file(file))
        names = [name.removesuffix(".weight_packed").removesuffix(".weight_scale") for name in tensors
                 if name.endswith((".weight_packed", ".weight_scale"))]
        return {"group": group, "weights": {name: torch.from_numpy(Stored(tensors, name, group).weight()) for name in names}}


def cheapest(losses: Losses, bits: list[dict[str, int]], budget: int) -> list[str]:
    """A scheme for each unit: the exact solution of the integer program, over multiples of the common divisor of all sizes."""
    least = [min(own.values()) for own in bits]
    divisor = math.gcd(*(size - low for own, low in zip(bits, least) for size in own.values()))
    steps = (budget - sum(least)) // divisor + 1
    best, taken, names = numpy.zeros(steps), [], list(losses[0])
    for own, sizes, low in zip(losses, bits, least):
        rows = numpy.full((len(names), steps), numpy.inf)
        for row, name in zip(rows, names):
            shift = (sizes[name] - low) // divisor
            if shift < steps:
                row[shift:] = best[:steps - shift] + own[name]
        taken.append(rows.argmin(0))
        best = rows.min(0)
    place, chosen = int(best.argmin()), []
    for own, sizes, low in zip(reversed(taken), reversed(bits), reversed(least)):
        chosen.append(names[own[place]])
        place -= (sizes[chosen[-1]] - low) // divisor
    return chosen[::-1]


def higgs_scores(units: list[list[str]], original: dict[str, torch.Tensor], rounded: dict[str, dict]) -> Losses:
    def factor(name: str) -> float:
        depth = int(re.search(r"(?:layers|layer|h|blocks)\.(\d+)", name)[1])
        kind = 1.2 if "attn" in name else 0.9
        return math.log(original[f"{name}.weight"].numel() + 1) * (1 + 0.05 * depth) * kind

    return [{scheme: sum(factor(name) * float((original[f"{name}.weight"].float() - own["weights"][name]).square().mean()) for name in unit)
             for scheme, own in rounded.items()} for unit in units]


def token_rows(model: Path, text: Path, samples: int, length: int) -> list[torch.Tensor]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    lines = text.read_text(encoding="utf-8").splitlines()[:samples]
    return [torch.tensor([tokenizer(json.loads(line)["text"]).input_ids[:length]]) for line in lines]


def gradient_scores(units: list[list[str]], rounded: dict[str, dict], arguments: argparse.Namespace) -> Losses:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    model.requires_grad_(False)
    model.get_input_embeddings().weight.requires_grad_(True)  # so that gradients reach every output
    scores = {name: dict.fromkeys(rounded, 0.0) for unit in units for name in unit}
    modules = dict(model.named_modules())
    errors = {name: {scheme: own["weights"][name].float() - modules[name].weight for scheme, own in rounded.items()} for name in scores}

    def watch(name: str, inputs: torch.Tensor, output: torch.Tensor) -> None:
        def add(gradient: torch.Tensor) -> None:
            for scheme, error in errors[name].items():
                scores[name][scheme] += float((gradient.square() * (inputs @ error.T).square()).sum())

        output.register_hook(add)

    for name in scores:
        modules[name].register_forward_hook(lambda _, given, made, name=name: watch(name, given[0].detach(), made))
    for ids in token_rows(arguments.model, arguments.calibration, arguments.samples, arguments.max_seq_length):
        model(ids, labels=ids).loss.backward()
        model.zero_grad()
    return [{scheme: sum(scores[name][scheme] for name in unit) for scheme in rounded} for unit in units]


def recipe_of(units: list[list[str]], chosen: list[str], rounded: dict[str, dict], algorithm: str) -> str:
    groups = {}
    for scheme, own in rounded.items():
        targets = [name for unit, name_of in zip(units, chosen) if name_of == scheme for name in unit]
        if targets:
            groups[f"group_{len(groups)}"] = {**{key: own["group"][key] for key in ("weights", "input_activations")}, "targets": targets}
            groups[f"group_{len(groups) - 1}"]["weights"].pop("observer", None)
    modifier = {"gptq": "GPTQModifier", "rtn": "QuantizationModifier"}[algorithm]
    return json.dumps({"quant_stage": {"quant_modifiers": {modifier: {"ignore": ["lm_head"], "config_groups": groups}}}})


def choices(runs: Runs, rounded: dict[str, dict]) -> tuple[dict[str, Any], dict[str, Losses]]:
    """The program's own figures, and the losses of a scheme in a unit by each score."""
    arguments = runs.arguments
    mixed = runs.calibrated("ours", "--target-bits", arguments.bits[0], "--schemes", ",".join(arguments.schemes),
                            *(["--group-size", arguments.group_size] if runs.group_size else []))["mixed_precision"]
    units = [unit["targets"] for unit in mixed["units"]]
    losses = {"layerpress": [{scheme: loss * unit["left_by_gptq"] for scheme, loss in unit["predicted_kl"].items()}
                             for unit in mixed["units"]]}
    if "higgs" in arguments.scores:
        original: dict[str, torch.Tensor] = {}
        for file in arguments.model.glob("*.safetensors"):
            original.update(load_file(file))
        losses["higgs"] = higgs_scores(units, original, rounded)
    if "gradient" in arguments.scores:
        losses["gradient"] = gradient_scores(units, rounded, arguments)
    return mixed, losses


def measure(arguments: argparse.Namespace) -> str:
    arguments.work.mkdir(parents=True, exist_ok=True)
    runs = Runs(arguments)
    rounded = {scheme: runs.uniform(scheme) for scheme in arguments.schemes}
    mixed, scores = choices(runs, rounded)
    units = [unit["targets"] for unit in mixed["units"]]
    stored = {own["scheme"]: own["bits"] for own in mixed["uniform"]}
    bits = [{scheme: round(stored[scheme] * unit["weights"]) for scheme in arguments.schemes} for unit in mixed["units"]]
    elements, rows = sum(unit["weights"] for unit in mixed["units"]), []
    recipe = arguments.work / "recipe.json"
    for algorithm in arguments.algorithms:
        for budget in arguments.bits:
            for name, losses in scores.items():
                if name == "layerpress" and algorithm == "rtn":
                    losses = [unit["predicted_kl"] for unit in mixed["units"]]
                chosen = cheapest(losses, bits, int(budget * elements))
                if name == "layerpress" and algorithm == "gptq" and budget == arguments.bits[0]:
                    assert chosen == [unit["scheme"] for unit in mixed["units"]], "the program does not choose the best"
                recipe.write_text(recipe_of(units, chosen, rounded, algorithm))
                runs.calibrated("mixed", "--recipe", recipe)
                own = sum(sizes[scheme] for sizes, scheme in zip(bits, chosen)) / elements
                predicted = sum(unit["predicted_kl"][scheme] for unit, scheme in zip(mixed["units"], chosen))
                rows.append([algorithm, f"{own:.3f}", name, f"{runs.divergence('mixed'):.4f}", f"{predicted:.4f}"])
                print(*rows[-1], file=sys.stderr, flush=True)
    return "\n".join([f"{arguments.model.name}, {arguments.samples} x {arguments.max_seq_length} tokens, on {machine()}", "",
                      table(["algorithm", "bits", "choice", "KL", "predicted, rounded to nearest"], rows)])


if __name__ == "__main__":
    print(measure(parse_arguments()))
