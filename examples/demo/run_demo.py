"""Compresses a real model: fetches it, quantizes it to 4 bits, measures the cost, and generates text with the result.

    python run_demo.py

Everything it makes is under .cache/; a second run fetches nothing and replaces its outputs.
"""
import json
import os
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from fetch_model import FetchError, fetch
from measured_process import Measured, ProcessFailed, run_measured
from python_docs_text import write_files

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("LAYERPRESS_PROGRAM", str(ROOT / "build" / "layerpress"))
MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"
RESULTS = ROOT / ".cache" / "demo"

SAMPLES, EVALUATION_SAMPLES, LENGTH = 32, 24, 512
GROUP_SIZE = 64  # the model's 576 columns do not divide by the usual 128
QUESTION = "What is the capital of France? Answer in one sentence."


@dataclass
class Row:
    """One line of the table; `run` is None for the base model."""
    name: str
    folder: Path
    quality: dict
    run: Measured | None


def compress(name: str, arguments: list[str]) -> tuple[Path, Measured]:
    folder = RESULTS / name
    command = [PROGRAM, "oneshot", str(MODEL), "--output", str(folder), "--overwrite", "--algorithm", name,
               "--scheme", "W4A16", "--group-size", str(GROUP_SIZE), "--ignore", "lm_head",
               "--summary", str(RESULTS / f"{name}.summary.json"), *arguments]
    return folder, run_measured(command)


def evaluate(folder: Path, text: Path, reference: Path | None) -> dict:
    command = [PROGRAM, "eval", str(folder), "--dataset", str(text), "--num-samples", str(EVALUATION_SAMPLES),
               "--max-seq-length", str(LENGTH)]
    if reference:
        command += ["--reference", str(reference)]
    return json.loads(run_measured(command).output)


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())


def format_row(row: Row, base_size: int) -> list[str]:
    size = size_of(row.folder)
    return [
        row.name,
        f"{size / 2**20:.1f} MiB",
        f"{size / base_size:.2f}",
        f"{row.quality['perplexity']:.2f}",
        f"{row.quality['kl_divergence']:.4f}" if "kl_divergence" in row.quality else "-",
        f"{row.quality['top1_agreement']:.1%}" if "top1_agreement" in row.quality else "-",
        f"{row.run.seconds:.1f} s" if row.run else "-",
        f"{row.run.peak_bytes / 2**20:.0f} MiB" if row.run else "-",
    ]


def print_table(rows: list[Row]) -> None:
    header = ["", "size", "of base", "perplexity", "KL to base", "same top-1", "time", "peak memory"]
    base_size = size_of(rows[0].folder)
    cells = [header, *(format_row(row, base_size) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    for index, line in enumerate(cells):
        print("  ".join([line[0].ljust(widths[0]), *(text.rjust(width) for text, width in zip(line[1:], widths[1:]))]))
        if index == 0:
            print("  ".join("-" * width for width in widths))


def print_answers(base: Path, compressed: Path) -> None:
    script = Path(__file__).with_name("generate.py")
    command = [sys.executable, str(script), QUESTION, str(base), str(compressed)]
    answers = json.loads(run_measured(command, {"HF_HUB_OFFLINE": "1"}, RESULTS / "generate.log").output)
    print(f"\nQuestion: {QUESTION}")
    for name, folder in (("base", base), ("compressed", compressed)):
        print(textwrap.fill(f"{name + ':':11} {answers[str(folder)]}", width=100, subsequent_indent=" " * 12))


def step(text: str) -> None:
    print(f"\n== {text}", flush=True)


def run() -> None:
    step(f"model: {MODEL.name}")
    print("fetched" if fetch(MODEL) else "already there")
    calibration, evaluation = write_files(RESULTS / "text")

    step(f"GPTQ: 4-bit weights in groups of {GROUP_SIZE}, {SAMPLES} samples of up to {LENGTH} tokens")
    gptq, gptq_run = compress("gptq", ["--dataset", str(calibration), "--num-calibration-samples", str(SAMPLES),
                                       "--max-seq-length", str(LENGTH)])
    step("round-to-nearest: the same format without calibration")
    rtn, rtn_run = compress("rtn", [])

    step(f"evaluation: {EVALUATION_SAMPLES} other passages")
    rows = [Row("base (bf16)", MODEL, evaluate(MODEL, evaluation, None), None),
            Row("round-to-nearest", rtn, evaluate(rtn, evaluation, MODEL), rtn_run),
            Row("GPTQ", gptq, evaluate(gptq, evaluation, MODEL), gptq_run)]

    step("result")
    print_table(rows)
    print_answers(MODEL, gptq)
    print(f"\nThe compressed checkpoint is in {gptq.relative_to(ROOT)}, in the format that vLLM reads too.")


def main() -> int:
    try:
        run()
    except (FetchError, ProcessFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
