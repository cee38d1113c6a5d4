"""Compares GGUF files of each type, by rounding with importance and by GPTQ, with the models that they were made of. See
benchmarks/gguf/run."""
import argparse
import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "examples" / "demo"), str(ROOT / "benchmarks" / "peer_comparison"), str(ROOT / "benchmarks" / "quality")]

import train_small_model  # noqa: E402
from contenders import OFFLINE, PROGRAM  # noqa: E402
from measure import TEXTS  # noqa: E402
from measured_process import Measured, run_measured  # noqa: E402
from report import machine, table  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from shared_options import print_result  # noqa: E402

TYPES = ["Q2_K", "Q3_K_M", "Q4_0", "Q4_K_S", "Q4_K_M", "IQ4_XS", "Q5_K_M", "Q6_K"]
ROUNDING = "rounding"
MODES = [ROUNDING, "balanced", "best"]
HEADER = ["type", "mode", "MiB", "bits per weight", "mean KL", "of rounding's", "median", "99th percentile", "worst token", "seconds"]
LLAMA_HEADER = ["mean KL by llama.cpp", "of rounding's"]
LLAMA_PYTHON = ROOT / ".venv-llama" / "bin" / "python"
Row = dict[str, Any]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/gguf/run", description=__doc__)
    parser.add_argument("models", nargs="*", type=Path, metavar="MODEL", help="checkpoint folders")
    parser.add_argument("--train", type=float, metavar="MINUTES",
                        help="and a small Qwen 3 whose widths 256 divides, trained for so long on the text's calibration part")
    parser.add_argument("--types", nargs="+", default=TYPES, metavar="TYPE", help=f"default: {' '.join(TYPES)}")
    parser.add_argument("--modes", nargs="+", default=MODES, choices=MODES,
                        help="rounding is what llama-quantize writes with an importance matrix of the same samples (default: all)")
    parser.add_argument("--text", default="handbook", choices=list(TEXTS), help="default: handbook")
    parser.add_argument("--samples", type=int, default=32, help="calibration samples (default 32)")
    parser.add_argument("--evaluation-samples", type=int, default=12, help="other samples to evaluate on (default 12)")
    parser.add_argument("--max-seq-length", type=int, default=512, help="tokens per sample at most (default 512)")
    parser.add_argument("--llama", action="store_true",
                        help="also the KL of llama.cpp's logits against its logits of the F16 file (scripts/setup --llama)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache" / "gguf", help="folder for outputs and figures")
    parser.add_argument("--output", type=Path, help="also write the Markdown to this file")
    parser.add_argument("--chart", type=Path, help="also draw bits per weight against KL as this SVG")
    arguments = parser.parse_args()
    if not arguments.models and arguments.train is None:
        parser.error("name a model, or train one with --train MINUTES")
    if arguments.llama and not LLAMA_PYTHON.exists():
        parser.error("--llama needs llama.cpp; run scripts/setup --llama")
    return arguments


class Comparison:
    """One model on one text. Its figures are in a file, so that an interrupted comparison goes on."""

    def __init__(self, model: Path, text: tuple[Path, Path], arguments: argparse.Namespace):
        self.model, self.arguments = model, arguments
        self.calibration, self.evaluation = text
        self.settings = [arguments.text, arguments.samples, arguments.evaluation_samples, arguments.max_seq_length]
        self.work = arguments.work / model.name
        self.work.mkdir(parents=True, exist_ok=True)
        self.store = self.work / "figures.json"
        self.figures: dict[str, Row] = json.loads(self.store.read_text(encoding="utf-8")) if self.store.exists() else {}

    def call(self, command: str, *words: Any) -> Measured:
        return run_measured([str(PROGRAM), command, *map(str, words)], OFFLINE, self.work / "log.txt")

    def compress(self, file: Path, *words: Any) -> float:
        return self.call("oneshot", self.model, "--output", file, "--overwrite", "--no-progress", *words).seconds

    def calibrated(self, file: Path, *words: Any) -> float:
        given = self.arguments
        return self.compress(file, *words, "--dataset", self.calibration, "--num-calibration-samples", given.samples,
                             "--max-seq-length", given.max_seq_length)

    def importance(self) -> Path:
        """Of the original model's inputs, as llama-imatrix measures them."""
        file = self.work / f"importance-{'-'.join(map(str, self.settings))}.gguf"
        if not file.exists():
            self.calibrated(self.work / "unused.gguf", "--algorithm", "rtn", "--observer", "hessian", "--pipeline", "basic", "--scheme",
                            "Q8_0", "--imatrix", file)
            (self.work / "unused.gguf").unlink()
        return file

    def samples_for_llama(self) -> Path:
        """The samples that `eval` reads."""
        file = self.work / f"samples-{'-'.join(map(str, self.settings))}.json"
        if not file.exists():
            packed = self.work / "samples.safetensors"
            packed.unlink(missing_ok=True)
            self.call("prepare", self.model, "--dataset", self.evaluation, "--num-calibration-samples",
                      self.arguments.evaluation_samples, "--max-seq-length", self.arguments.max_seq_length, "--no-progress", "--output",
                      packed)
            tensors = load_file(packed)
            offsets = tensors["sample_offsets"].tolist()
            ids = tensors["input_ids"].tolist()
            file.write_text(json.dumps([ids[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]), encoding="utf-8")
        return file

    def f16(self) -> Path:
        file = self.work / "F16.gguf"
        if not file.exists():
            self.compress(file, "--scheme", "F16")
        return file

    def make(self, file: Path, kind: str, mode: str) -> float:
        if mode == ROUNDING:
            return self.compress(file, "--algorithm", "rtn", "--scheme", kind, "--from-imatrix", self.importance())
        return self.calibrated(file, "--scheme", kind, "--quality", mode)

    def divergence_by_llama(self, file: Path) -> float:
        command = [str(LLAMA_PYTHON), str(ROOT / "benchmarks" / "gguf" / "llama_divergence.py"), str(self.f16()),
                   str(self.samples_for_llama()), str(file)]
        mean: float = json.loads(run_measured(command, OFFLINE, self.work / "log.txt").output)["mean"]
        return mean

    def measure(self, kind: str, mode: str) -> Row:
        file = self.work / f"{kind}-{mode}.gguf"
        seconds = self.make(file, kind, mode)
        size = file.stat().st_size
        found = json.loads(self.call("eval", file, "--reference", self.model, "--dataset", self.evaluation, "--num-samples",
                                     self.arguments.evaluation_samples, "--max-seq-length", self.arguments.max_seq_length, "--dtype",
                                     "fp32", "--no-progress").output)
        row = {"bytes": size, "seconds": seconds, "mean": found["kl_divergence"], "median": found["kl_median"],
               "p99": found["kl_percentile_99"], "max": found["worst_tokens"][0]["kl_divergence"]}
        if self.arguments.llama:
            row["llama"] = self.divergence_by_llama(file)
        file.unlink()
        return row

    def row(self, kind: str, mode: str) -> Row:
        key = json.dumps([kind, mode, *self.settings, *(["llama.cpp"] if self.arguments.llama else [])])
        if key not in self.figures:
            self.figures[key] = self.measure(kind, mode)
            self.store.write_text(json.dumps(self.figures, indent=1), encoding="utf-8")
            print(self.model.name, kind, mode, self.figures[key], file=sys.stderr, flush=True)
        return self.figures[key]

    def rows(self) -> list[Row]:
        parameters = json.loads(self.call("inspect", self.model, "--json").output)["parameters"]
        rows = []
        for kind in self.arguments.types:
            base = self.row(kind, ROUNDING) if ROUNDING in self.arguments.modes else None
            for mode in self.arguments.modes:
                row = self.row(kind, mode)
                rows.append({**row, "model": self.model.name, "type": kind, "mode": mode, "bits": 8 * row["bytes"] / parameters,
                             "ratio": row["mean"] / base["mean"] if base else None,
                             "llama ratio": row["llama"] / base["llama"] if base and self.arguments.llama else None})
        return rows


def ratio_cell(row: Row, key: str) -> str:
    return "" if row[key] is None or row["mode"] == ROUNDING else f"{row[key]:.2f}"


def markdown(rows: list[Row]) -> str:
    by_llama = "llama" in rows[0]
    cells = []
    for row in rows:
        cells.append([row["type"], row["mode"], f"{row['bytes'] / 2**20:.1f}", f"{row['bits']:.2f}", f"{row['mean']:.4f}",
                      ratio_cell(row, "ratio"), f"{row['median']:.4f}", f"{row['p99']:.3f}", f"{row['max']:.2f}", f"{row['seconds']:.0f}"])
        if by_llama:
            cells[-1] += [f"{row['llama']:.4f}", ratio_cell(row, "llama ratio")]
    return table(HEADER + (LLAMA_HEADER if by_llama else []), cells)


def chart(rows: list[Row]) -> str:
    """A curve for each mode, a panel for each model."""
    import vl_convert  # not where no chart is asked for

    position = {"x": {"field": "bits", "type": "quantitative", "title": "bits per weight of the whole file", "scale": {"zero": False}},
                "y": {"field": "mean", "type": "quantitative", "title": "mean KL", "scale": {"type": "log"}}}
    color = {"color": {"field": "mode", "type": "nominal", "title": None, "legend": {"orient": "bottom"},
                       "scale": {"domain": MODES, "range": ["#4c78a8", "#f58518", "#54a24b"]}}}
    label = {"transform": [{"filter": {"field": "mode", "equal": rows[0]["mode"]}}],
             "mark": {"type": "text", "angle": 270, "align": "left", "dx": 7, "fontSize": 9}, "encoding": {**position, "text": {"field": "type"}}}
    layers = [{"mark": {"type": "line", "point": True}, "encoding": {**position, **color}}, label]
    models = list(dict.fromkeys(row["model"] for row in rows))
    spec = {"background": "white", "data": {"values": rows},
            "facet": {"field": "model", "type": "nominal", "title": None, "sort": models}, "columns": 2,
            "spec": {"width": 460, "height": 280, "layer": layers}, "resolve": {"scale": {"x": "independent", "y": "independent"}}}
    return vl_convert.vegalite_to_svg(json.dumps(spec))


def compare(arguments: argparse.Namespace) -> str:
    arguments.work.mkdir(parents=True, exist_ok=True)
    text = TEXTS[arguments.text](arguments.work / arguments.text)
    models = [model.resolve() for model in arguments.models]
    if arguments.train is not None:
        models.append(train_small_model.make(arguments.work / "models" / "trained", "dense", [text[0]], arguments.train))
    parts = [f"Made by `benchmarks/gguf/run` on {machine()}: {arguments.samples} calibration samples and {arguments.evaluation_samples} "
             f"held-out ones of up to {arguments.max_seq_length} tokens ({arguments.text}); weights only, in fp32."]
    every: list[Row] = []
    for model in models:
        rows = Comparison(model, text, arguments).rows()
        every += rows
        parts.append(f"{model.name}:\n\n{markdown(rows)}")
    if arguments.chart:
        arguments.chart.write_text(chart(every), encoding="utf-8")
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(print_result(compare, parse_arguments()))
