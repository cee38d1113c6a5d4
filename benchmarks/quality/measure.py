"""Compares values of --quality, or settings of best, for several number formats and texts. See benchmarks/quality/run."""
import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "demo"), str(ROOT / "benchmarks" / "peer_comparison")]

from measured_process import run_measured  # noqa: E402

import debian_handbook_text  # noqa: E402
import python_docs_text  # noqa: E402
from contenders import OFFLINE, PROGRAM  # noqa: E402
from fetch_model import fetch  # noqa: E402
from report import machine, table  # noqa: E402
from shared_options import DEFAULT_MODEL, print_result  # noqa: E402

import train_small_model  # noqa: E402

# Weights as in a recipe.
FORMATS = {
    "W4 group 32": {"num_bits": 4, "strategy": "group", "group_size": 32},
    "W4 group 64": {"num_bits": 4, "strategy": "group", "group_size": 64},
    "W4 channel": {"num_bits": 4, "strategy": "channel"},
    "W3 group 64": {"num_bits": 3, "strategy": "group", "group_size": 64},
    "W4 asymmetric group 64": {"num_bits": 4, "symmetric": False, "strategy": "group", "group_size": 64},
}
MODES = ["fast", "balanced", "best"]
PROPAGATION = ["strength", "damping", "residual"]
TEXTS = {"handbook": debian_handbook_text.write_files, "python": python_docs_text.write_files}
HEADER = ["weights", "mode", "KL", "perplexity", "same first token", "last layer's error"]


@dataclass
class Text:
    name: str
    calibration: Path
    evaluation: Path


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/quality/run", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    parser.add_argument("--train", choices=list(train_small_model.SHAPES), metavar="KIND",
                        help="instead, a small Qwen 3 (dense, or a mixture of experts) that is trained before, on the texts' "
                             "calibration parts")
    parser.add_argument("--minutes", type=float, default=6, help="to train it (default 6)")
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=list(FORMATS), metavar="FORMAT",
                        help=f"of {', '.join(FORMATS)} (default: all)")
    parser.add_argument("--modes", nargs="+", default=MODES, metavar="MODE",
                        help="qualities, or best with other settings, such as strength=0.5,damping=0.1,residual=0 or "
                             "observer=hessian (default: fast balanced best)")
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=list(TEXTS), help="default: both")
    parser.add_argument("--own-text", nargs=3, action="append", default=[], metavar=("NAME", "CALIBRATION", "EVALUATION"),
                        help="and JSON lines with `text`; may be given again")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples (default 32)")
    parser.add_argument("--max-seq-length", type=int, default=512, help="tokens per sample at most (default 512)")
    parser.add_argument("--evaluation-samples", type=int, default=24, help="samples to evaluate on (default 24)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "quality", help="folder for all outputs")
    parser.add_argument("--output", type=Path, help="also write the Markdown to this file")
    arguments = parser.parse_args()
    if arguments.model is not None and arguments.train is not None:
        parser.error("--model and --train both name the model")
    for mode in arguments.modes:
        try:
            modifier_arguments(mode)
        except ValueError as error:
            parser.error(f"--modes: '{mode}' is neither one of {', '.join(MODES)} nor settings: {error}")
    return arguments


def modifier_arguments(mode: str) -> dict:
    """The modifier's arguments for a mode: none for a quality. Settings not named keep the values of best."""
    if mode in MODES:
        return {}
    added: dict = {}
    for key, value in (part.split("=") for part in mode.split(",")):
        if key in PROPAGATION:
            added.setdefault("error_propagation", {})[key] = float(value)
        else:
            added[key] = value if key == "observer" else float(value)
    return added


def texts_of(arguments: argparse.Namespace) -> list[Text]:
    made = [Text(name, *TEXTS[name](arguments.work / name)) for name in arguments.texts]
    return made + [Text(name, Path(calibration), Path(evaluation)) for name, calibration, evaluation in arguments.own_text]


def write_recipe(path: Path, weights: dict, mode: str) -> Path:
    modifier = {"ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
                **modifier_arguments(mode)}
    path.write_text(json.dumps({"quality_stage": {"quality_modifiers": {"GPTQModifier": modifier}}}), encoding="utf-8")
    return path


def figures(model: Path, text: Text, weights: dict, mode: str, arguments: argparse.Namespace) -> dict:
    """Compresses and evaluates once; returns the result of `layerpress eval`."""
    output, log = arguments.work / "compressed", arguments.work / "log.txt"
    recipe = write_recipe(arguments.work / "recipe.json", weights, mode)
    length = ["--max-seq-length", str(arguments.max_seq_length), "--no-progress"]
    run_measured([str(PROGRAM), "oneshot", str(model), "--output", str(output), "--overwrite", "--recipe", str(recipe),
                  "--quality", mode if mode in MODES else "best", "--dataset", str(text.calibration),
                  "--num-calibration-samples", str(arguments.samples), *length], OFFLINE, log)
    measured = run_measured([str(PROGRAM), "eval", str(output), "--reference", str(model), "--dataset", str(text.evaluation),
                             "--num-samples", str(arguments.evaluation_samples), *length], OFFLINE, log)
    return json.loads(measured.output)


def row(name: str, mode: str, found: dict) -> list[str]:
    last = found["layers"][-1]["relative_error"] if found.get("layers") else float("nan")
    return [name, mode, f"{found['kl_divergence']:.4f}", f"{found['perplexity']:.2f}", f"{found['top1_agreement']:.1%}",
            f"{last:.3f}"]


def model_of(arguments: argparse.Namespace, texts: list[Text]) -> Path:
    if arguments.train is not None:
        folder = arguments.work / f"trained-{arguments.train}"
        return train_small_model.make(folder, arguments.train, [text.calibration for text in texts], arguments.minutes)
    if arguments.model is None:
        fetch(DEFAULT_MODEL)
    return (arguments.model or DEFAULT_MODEL).resolve()


def measure(arguments: argparse.Namespace) -> str:
    arguments.work.mkdir(parents=True, exist_ok=True)
    texts = texts_of(arguments)
    model = model_of(arguments, texts)
    parts = [f"Made by `benchmarks/quality/run` on {machine()}: {model.name}, GPTQ, {arguments.samples} calibration samples "
             f"and {arguments.evaluation_samples} held-out ones of up to {arguments.max_seq_length} tokens."]
    for text in texts:
        rows = []
        for name in arguments.formats:
            for mode in arguments.modes:
                rows.append(row(name, mode, figures(model, text, FORMATS[name], mode, arguments)))
                print(text.name, *rows[-1], file=sys.stderr, flush=True)
        parts.append(f"Text: {text.name}.\n\n{table(HEADER, rows)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
