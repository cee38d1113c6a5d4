"""Compares rounding, values of --quality, or settings of them, for several number formats and texts. See benchmarks/quality/run."""
import argparse
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "demo"), str(ROOT / "benchmarks" / "peer_comparison")]

import debian_handbook_text  # noqa: E402
import four_over_six  # noqa: E402
import python_docs_text  # noqa: E402
import train_small_model  # noqa: E402
from contenders import HERE, OFFLINE, PEER_PYTHON, PROGRAM  # noqa: E402
from fetch_model import fetch  # noqa: E402
from measured_process import run_measured  # noqa: E402
from number_formats import DENSE, FORMATS, FOUR_OVER_SIX, INTEGERS, QUALITIES, WITH_INPUTS, Mode, is_pruned, parse_mode, write_recipe  # noqa: E402
from report import machine, table  # noqa: E402
from shared_options import DEFAULT_MODEL, print_result  # noqa: E402

TEXTS = {"handbook": debian_handbook_text.write_files, "python": python_docs_text.write_files}
HEADER = ["weights", "mode", "KL", "median", "99th percentile", "worst token", "perplexity", "same first token", "last layer's error"]
SERVED = ["KL, inputs rounded", "perplexity, inputs rounded"]


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
    parser.add_argument("--formats", nargs="+", default=list(INTEGERS), choices=list(FORMATS), metavar="FORMAT",
                        help=f"of {', '.join(FORMATS)} (default: the integers)")
    parser.add_argument("--modes", nargs="+", default=QUALITIES, metavar="MODE",
                        help="qualities, also max; a quality with other settings, such as best,strength=0.5,damping=0.1,residual=0 or "
                             "balanced,dampening_frac=0.05; rtn, rtn-minmax, rtn-expanded; rtn-four-over-six of NVFP4; LLM "
                             "Compressor's peer-rtn, peer-rtn-expanded, peer-gptq, peer-gptq-mse, peer-gptq-expanded and peer-autoround (AutoRound, "
                             "200 iterations); rotated:MODE, after SpinQuant's "
                             "R1 and R2, rotated32:MODE in blocks of 32 channels, R1:MODE and R2:MODE after one of them; head:MODE with the head "
                             "moved; sparsegpt or wanda, which prune half of all weights, "
                             "and sparsegpt2of4 or wanda2of4, before a mode, such as sparsegpt:balanced, or alone with the format dense, where "
                             "sparsegpt:best moves weights before it prunes them (default: fast balanced best)")
    parser.add_argument("--texts", nargs="+", default=list(TEXTS), choices=list(TEXTS), help="default: both")
    parser.add_argument("--own-text", nargs=3, action="append", default=[], metavar=("NAME", "CALIBRATION", "EVALUATION"),
                        help="and JSON lines with `text`; may be given again")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples (default 32)")
    parser.add_argument("--max-seq-length", type=int, default=512, help="tokens per sample at most (default 512)")
    parser.add_argument("--pipeline", default="", help="of Layerpress's runs (default: what it chooses)")
    parser.add_argument("--first-layers", type=int, help="decoder layers to compress; later ones stay as they are (default: all)")
    parser.add_argument("--evaluation-samples", type=int, default=24, help="samples to evaluate on (default 24)")
    parser.add_argument("--evaluation-dtype", default="auto", help="in which evaluations compute (default: the checkpoint's)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "quality", help="folder for all outputs")
    parser.add_argument("--output", type=Path, help="also write the Markdown to this file")
    arguments = parser.parse_args()
    if arguments.model is not None and arguments.train is not None:
        parser.error("--model and --train both name the model")
    if FOUR_OVER_SIX in arguments.modes and arguments.formats != ["NVFP4"]:
        parser.error(f"--modes: {FOUR_OVER_SIX} is for --formats NVFP4")
    for mode in arguments.modes:
        try:
            parse_mode(mode)
        except ValueError as error:
            parser.error(f"--modes: '{mode}' is neither a mode nor settings of one: {error}")
        if any(not is_pruned(mode) if name == DENSE else parse_mode(mode).modifier == "" for name in arguments.formats):
            parser.error(f"--modes: the format {DENSE} is for sparsegpt, wanda and the like, and only this has them alone")
    return arguments


def texts_of(arguments: argparse.Namespace) -> list[Text]:
    made = [Text(name, *TEXTS[name](arguments.work / name)) for name in arguments.texts]
    return made + [Text(name, Path(calibration), Path(evaluation)) for name, calibration, evaluation in arguments.own_text]


def compress(model: Path, text: Text, mode: Mode, recipe: Path, arguments: argparse.Namespace) -> Path:
    output, log = arguments.work / "compressed", arguments.work / "log.txt"
    shutil.rmtree(output, ignore_errors=True)
    samples, length = str(arguments.samples), str(arguments.max_seq_length)
    command = [str(PROGRAM), "oneshot", str(model), "--output", str(output), "--overwrite", "--recipe", str(recipe),
               "--quality", mode.quality, "--dataset", str(text.calibration), "--num-calibration-samples", samples,
               "--max-seq-length", length, "--no-progress",
               *(["--pipeline", arguments.pipeline] if arguments.pipeline else [])]
    if mode.by_peer:
        command = [str(PEER_PYTHON), str(HERE / "peer_oneshot.py"), "--model", str(model), "--calibration",
                   str(text.calibration), "--output", str(output), "--summary", str(arguments.work / "peer.json"), "--recipe",
                   str(recipe), "--samples", samples, "--max-seq-length", length]
    run_measured(command, OFFLINE, log)
    if mode.name == FOUR_OVER_SIX:
        four_over_six.requantize(output, model)
    return output


def evaluate(output: Path, model: Path, text: Text, arguments: argparse.Namespace, *options: str) -> dict:
    command = [str(PROGRAM), "eval", str(output), "--reference", str(model), "--dataset", str(text.evaluation), "--num-samples",
               str(arguments.evaluation_samples), "--max-seq-length", str(arguments.max_seq_length), "--no-progress", "--dtype",
               arguments.evaluation_dtype, *options]
    return json.loads(run_measured(command, OFFLINE, arguments.work / "log.txt").output)


def later_layers(model: Path, first: Optional[int]) -> list[str]:
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    return [f"re:.*layers[.]{layer}[.].*" for layer in range(first, config["num_hidden_layers"])] if first is not None else []


def row(model: Path, text: Text, number_format: str, mode: Mode, arguments: argparse.Namespace) -> list[str]:
    """Compresses once; evaluates as stored and, where the format quantizes inputs, as an engine computes."""
    recipe = write_recipe(arguments.work / "recipe.yaml", number_format, mode, later_layers(model, arguments.first_layers))
    output = compress(model, text, mode, recipe, arguments)
    found = evaluate(output, model, text, arguments)
    last = found["layers"][-1]["relative_error"] if found.get("layers") else float("nan")
    cells = [number_format, mode.name, f"{found['kl_divergence']:.4f}", f"{found['kl_median']:.4f}",
             f"{found['kl_percentile_99']:.3f}", f"{found['worst_tokens'][0]['kl_divergence']:.2f}", f"{found['perplexity']:.2f}",
             f"{found['top1_agreement']:.1%}", f"{last:.3f}"]
    if not WITH_INPUTS.keys() & set(arguments.formats):
        return cells
    if number_format not in WITH_INPUTS:
        return [*cells, "-", "-"]
    served = evaluate(output, model, text, arguments, "--quantize-activations")
    return [*cells, f"{served['kl_divergence']:.4f}", f"{served['perplexity']:.2f}"]


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
    parts = [f"Made by `benchmarks/quality/run` on {machine()}: {model.name}, {arguments.samples} calibration samples "
             f"and {arguments.evaluation_samples} held-out ones of up to {arguments.max_seq_length} tokens."]
    header = HEADER + (SERVED if WITH_INPUTS.keys() & set(arguments.formats) else [])
    for text in texts:
        rows = []
        for name in arguments.formats:
            for mode in map(parse_mode, arguments.modes):
                rows.append(row(model, text, name, mode, arguments))
                print(text.name, *rows[-1], file=sys.stderr, flush=True)
        parts.append(f"Text: {text.name}.\n\n{table(header, rows)}")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(measure, parse_arguments()))
