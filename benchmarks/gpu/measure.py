"""Measures Layerpress on a GPU and prints Markdown. See benchmarks/gpu/run."""
import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in ("benchmarks/memory_cases", "benchmarks/peer_comparison", "examples/demo")]

from llama_checkpoint import LlamaShape, make_checkpoint, write_token_file  # noqa: E402
from peer import peer, pruning  # noqa: E402
from report import machine, table  # noqa: E402
from safetensors_stream import read_header  # noqa: E402
from shapes import SMALL, mixture_layer  # noqa: E402
from watched_process import RunFailed  # noqa: E402

PHASES = ["load", "forward", "gram", "factorize", "observe", "solve", "dequantize", "write"]
GPTQ = ("--algorithm", "gptq", "--scheme", "W4A16", "--ignore", "lm_head")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu/run", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cpu tries the script where there is no GPU (default cuda)")
    parser.add_argument("--build", type=Path, default=ROOT / "build-gpu", help="folder of the built programs")
    parser.add_argument("--scratch", type=Path, default=ROOT / ".cache" / "gpu", help="needs 40 GB with all layers")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="default: all")
    parser.add_argument("--layers", type=int, default=32, help="of Llama-3-8B's shape (default 32)")
    parser.add_argument("--experts", type=int, default=128, help="of the mixture's layer (default 128)")
    parser.add_argument("--samples", type=int, nargs="+", default=[64, 512], help="a run with each (default 64 512)")
    parser.add_argument("--sample-tokens", type=int, default=2048, help="tokens of each (default 2048)")
    parser.add_argument("--budget", default="5.8GB", help="of device memory, for a second run with most samples (default 5.8GB)")
    parser.add_argument("--peer-layers", type=int, default=4, help="of them that LLM Compressor does first (default 4)")
    parser.add_argument("--peer-python", type=Path, help="has LLM Compressor (default: this one, with .vendor/python)")
    parser.add_argument("--minutes", type=float, default=9, help="no run is begun that would end later (default 9)")
    parser.add_argument("--output", type=Path, help="also write the Markdown to this file")
    return parser.parse_args()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Bench:
    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.began = time.monotonic()
        self.scratch = arguments.scratch.resolve()
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.peak = matrix_peak(arguments.device)

    def left(self) -> float:
        return 60 * self.arguments.minutes - (time.monotonic() - self.began)

    def call(self, program: str, *arguments: object) -> str:
        command = [str(self.arguments.build / program), *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise RunFailed(f"{program} {arguments[0]} ended with {done.returncode}: {last}")
        return done.stdout

    def compress(self, model: Path, output: Path, tokens: Path, device: str, *more: object, job: Sequence[object] = GPTQ) -> dict:
        """The summary of a run, plus the wall time of the process."""
        summary = output.with_suffix(".summary.json")
        began = time.monotonic()
        self.call("layerpress", "oneshot", model, "--output", output, "--overwrite", *job, "--dataset", tokens, "--device", device,
                  "--no-progress", "--summary", summary, *more)
        return json.loads(summary.read_text(encoding="utf-8")) | {"wall": time.monotonic() - began}

    def tokens(self, samples: int, vocabulary: int, length: int | None = None) -> Path:
        length = length or self.arguments.sample_tokens
        path = self.scratch / f"tokens-{samples}x{length}-{vocabulary}.safetensors"
        return path if path.exists() else write_token_file(path, samples, length, vocabulary)


def matrix_peak(device: str) -> float:
    """Operations per second of a large bf16 product."""
    import torch

    size = 8192 if device.startswith("cuda") else 1024
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))

    def seconds(times: int) -> float:
        began = time.monotonic()
        for _ in range(times):
            product = a @ b
        product[0, 0].item()  # waits
        return time.monotonic() - began

    seconds(3)
    return 2 * size**3 * 10 / seconds(10)


def run_row(name: str, summary: dict, peak: float) -> list[str]:
    phases = summary["phases"]
    multiplied = sum(phases[phase]["flops"] for phase in ("forward", "gram") if phase in phases)
    return [name, f"{summary['wall']:.1f}", *(f"{phases[phase]['seconds']:.2f}" if phase in phases else "-" for phase in PHASES),
            f"{multiplied / summary['wall'] / peak:.1%}", f"{summary['peak_device_bytes'] / 1e9:.2f}",
            f"{summary['plan']['device_peak_bytes'] / 1e9:.2f}", f"{summary['peak_anonymous_bytes'] / 1e9:.2f}"]


RUN_HEADER = ["case", "seconds", *PHASES, "of the bf16 peak", "device GB", "planned", "host GB"]


def model_runs(bench: Bench, name: str, shape, times: int = 1) -> list[list[str]]:
    say(f"{name}: making the checkpoint")
    model = make_checkpoint(bench.scratch / name, shape)
    rows, per_sample, budget = [], 0.0, ["--device-memory-budget", bench.arguments.budget]
    most = max(bench.arguments.samples)
    for samples, limit in [*((samples, []) for samples in bench.arguments.samples), (most, budget)]:
        label = f"{name}, {samples} samples" + (f", {bench.arguments.budget}" if limit else "")
        if per_sample * samples > bench.left():
            rows.append([label, "no time left", *["-"] * (len(RUN_HEADER) - 2)])
            continue
        summary = bench.compress(model, bench.scratch / f"{name}-compressed", bench.tokens(samples, shape.vocab_size),
                                 bench.arguments.device, "--num-calibration-samples", samples, *limit)
        per_sample = summary["wall"] / samples
        rows.append(run_row(label, summary, bench.peak))
        say(" ".join(rows[-1]))
        if times > 1:
            rows.append([f"the same x {times}", f"{times * summary['seconds']:.0f}", *["-"] * (len(RUN_HEADER) - 2)])
    return rows


def llama(bench: Bench) -> str:
    return table(RUN_HEADER, model_runs(bench, "llama-3-8b", LlamaShape(num_hidden_layers=bench.arguments.layers)))


def mixture(bench: Bench) -> str:
    return table(RUN_HEADER, model_runs(bench, "qwen3-30b-a3b-layer", mixture_layer(bench.arguments.experts), times=48))


def solver(bench: Bench) -> str:
    rows = []
    for line in bench.call("gpu_solver", bench.arguments.device).splitlines():
        found = json.loads(line)
        rows.append([found["case"], f"{found['milliseconds']:.2f}", f"{found['flops'] / found['milliseconds'] / 1e9:.1f}",
                     f"{found['equal']:.4%}"])
    return table(["GPTQ alone", "ms", "TFLOP/s", "codes as on the CPU"], rows)


def equal_share(first: Path, second: Path) -> float:
    """Compares the packed words of two compressed checkpoints."""
    import torch

    equal = count = 0
    for path in sorted(first.glob("*.safetensors")):
        entries, data = read_header(path)
        bytes_of = [(folder / path.name).read_bytes()[data:] for folder in (first, second)]
        for name, entry in entries.items():
            if not name.endswith("weight_packed"):
                continue
            a, b = (torch.frombuffer(bytearray(raw[slice(*entry["data_offsets"])]), dtype=torch.uint8) for raw in bytes_of)
            for shift in (0, 4):
                equal += int(((a >> shift & 15) == (b >> shift & 15)).sum())
                count += a.numel()
    return equal / count


def agreement(bench: Bench) -> str:
    model = make_checkpoint(bench.scratch / "small", SMALL, block_elements=1 << 22)
    tokens, held_out = bench.tokens(16, SMALL.vocab_size, 256), bench.tokens(8, SMALL.vocab_size, 128)
    rows, outputs = [], []
    for device in ("cpu", bench.arguments.device):
        outputs.append(bench.scratch / f"small-on-{device.replace(':', '-')}-{len(outputs)}")
        bench.compress(model, outputs[-1], tokens, device)
        found = json.loads(bench.call("layerpress", "eval", outputs[-1], "--reference", model, "--dataset", held_out, "--device",
                                      "cpu", "--no-progress"))
        rows.append([f"compressed on {device}", f"{found['kl_divergence']:.5f}", f"{found['perplexity']:.2f}",
                     f"{equal_share(outputs[0], outputs[-1]):.2%}"])
    return table(["random small Llama", "KL", "perplexity", "codes as on the CPU"], rows)


CASES = {"solver": solver, "agreement": agreement, "llama": llama, "mixture": mixture, "peer": peer, "pruning": pruning}


def device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def main() -> int:
    arguments = parse_arguments()
    bench = Bench(arguments)
    parts = [f"Made by `benchmarks/gpu/run` on {machine()}, {device_name(arguments.device)}; a large bf16 product there does "
             f"{bench.peak / 1e12:.1f} TFLOP/s. Phases are what the host spent in them; a device may be behind."]
    for case in arguments.cases:
        try:
            parts.append(CASES[case](bench))
        except RunFailed as error:  # the others may work
            parts.append(f"{case}: {error}")
        print(parts[-1], file=sys.stderr, flush=True)
    text = "\n\n".join(parts) + "\n"
    print(text)
    if arguments.output:
        arguments.output.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
