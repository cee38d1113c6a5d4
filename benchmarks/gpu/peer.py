"""Runs LLM Compressor with the same jobs on the same device, for benchmarks/gpu/run."""
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from contenders import HERE, OFFLINE, ROOT
from llama_checkpoint import LlamaShape, make_checkpoint
from report import table
from setting import say
from shapes import MixtureShape, mixture_layer
from watched_process import MemoryWatch, RunFailed, Watched, run_watched

if TYPE_CHECKING:
    from measure import Bench

GATHERED = ROOT / ".vendor" / "python"
GPTQ = ("--group-size", 128)
PRUNING = ("sparsegpt_2of4.yaml", "wanda.yaml", "sparsegpt.yaml", "wanda_2of4.yaml")
HEADER = ["case", "seconds", "faster", "load", "compression", "of it solving", "save", "device GB", "reserved GB", "host GB"]
VERSIONS = """
import llmcompressor, torch, transformers
from importlib.metadata import version
torch.empty(1, device="{device}")
print("LLM Compressor", version("llmcompressor"), "on PyTorch", torch.__version__, "and transformers", transformers.__version__)
"""


@dataclass(frozen=True)
class Job:
    name: str
    shape: LlamaShape | MixtureShape
    part: "Job | None" = None  # with fewer of its layers


@dataclass
class PeerRun:
    watched: Watched
    summary: dict

    @property
    def solve_seconds(self) -> float:
        """Seconds from its log; all linears of a batch report the seconds of the whole batch."""
        return sum(map(float, re.findall(r"Quantizing \d+ module.*?METRIC - time ([\d.]+)s", self.watched.output, re.DOTALL)))

    def affordable(self, seconds: float, layers: float = 1) -> int:
        """The number of samples for a run of `seconds` with `layers` times the layers, if solving, reading and writing take the
        same time for any number of samples."""
        load, oneshot, save = (self.summary[f"{name}_seconds"] for name in ("load", "oneshot", "save"))
        start = self.watched.seconds - load - oneshot - save
        per_layer = (seconds - start) / layers - load - save - self.solve_seconds
        return int(per_layer / (oneshot - self.solve_seconds) * self.summary["samples"])


class Peer:
    def __init__(self, bench: "Bench") -> None:
        self.bench = bench
        self.python = bench.arguments.peer_python or Path(sys.executable)
        self.environment = dict(OFFLINE)
        if not bench.arguments.peer_python and GATHERED.is_dir():
            self.environment["PYTHONPATH"] = str(GATHERED)
        if bench.arguments.device != "cuda":  # it takes the first that it sees
            self.environment["CUDA_VISIBLE_DEVICES"] = bench.arguments.device.partition(":")[2]

    def run(self, name: str, *arguments: object) -> Watched:
        """Ends the process when the time is over."""
        limit = self.bench.left()

        def end(seconds: float, _: MemoryWatch) -> None:
            if seconds > limit:
                raise RunFailed(f"not done after {seconds:.0f} s, when no time was left")

        return run_watched([str(self.python), *map(str, arguments)], self.bench.scratch / f"{name}-peer.log", end, 1,
                           self.environment)

    def versions(self) -> str:
        device = self.bench.arguments.device.partition(":")[0]
        return self.run("versions", "-c", VERSIONS.format(device=device)).output.strip().splitlines()[-1]

    def compress(self, name: str, model: Path, tokens: Path, samples: int, job: Sequence[object] = GPTQ) -> PeerRun:
        summary = self.bench.scratch / f"{name}-peer.summary.json"
        watched = self.run(name, HERE / "peer_oneshot.py", "--model", model, "--calibration", tokens, "--output",
                           self.bench.scratch / f"{name}-peer", "--summary", summary, *job, "--samples", samples,
                           "--max-seq-length", self.bench.arguments.sample_tokens)
        return PeerRun(watched, json.loads(summary.read_text(encoding="utf-8")))


def reason(error: RunFailed) -> str:
    """The log without the command."""
    return str(error).rpartition("ended with ")[2]


def own_row(label: str, own: dict, run: PeerRun) -> list[str]:
    return [f"{label}, Layerpress", f"{own['wall']:.1f}", f"{run.watched.seconds / own['wall']:.2f}x", "-",
            f"{own['seconds']:.1f}", "-", "-", f"{own['peak_device_bytes'] / 1e9:.2f}", "-",
            f"{own['peak_anonymous_bytes'] / 1e9:.2f}"]


def peer_row(label: str, run: PeerRun) -> list[str]:
    found = run.summary
    return [f"{label}, LLM Compressor", f"{run.watched.seconds:.1f}", "-", f"{found['load_seconds']:.1f}",
            f"{found['oneshot_seconds']:.1f}", f"{run.solve_seconds:.1f}", f"{found['save_seconds']:.1f}",
            f"{found['peak_device_bytes'] / 1e9:.2f}", f"{found['reserved_device_bytes'] / 1e9:.2f}",
            f"{run.watched.anonymous_bytes / 1e9:.2f}"]


def side_by_side(peer: Peer, job: Job, samples: int) -> tuple[PeerRun, list[list[str]]]:
    bench = peer.bench
    label = f"{job.name}, {samples} samples"
    model = make_checkpoint(bench.scratch / job.name, job.shape)
    tokens = bench.tokens(samples, job.shape.vocab_size)
    own = bench.compress(model, bench.scratch / f"{job.name}-compressed", tokens, bench.arguments.device,
                         "--num-calibration-samples", samples, "--observer", "minmax")  # the peer's default
    run = peer.compress(job.name, model, tokens, samples)
    rows = [peer_row(label, run), own_row(label, own, run)]
    for row in rows:
        say(" ".join(row))
    return run, rows


def jobs(bench: "Bench") -> list[Job]:
    layers = bench.arguments.layers
    few = min(bench.arguments.peer_layers, layers)
    first = Job("llama-3-8b" if few == layers else f"llama-3-8b-{few}-layers", LlamaShape(num_hidden_layers=few))
    whole = [] if few == layers else [Job("llama-3-8b", LlamaShape(num_hidden_layers=layers), first)]
    return [first, Job("qwen3-30b-a3b-layer", mixture_layer(bench.arguments.experts)), *whole]


def samples_for(job: Job, wanted: int, runs: dict[str, PeerRun], seconds: float) -> int:
    """What fits into the time, judging by a run with fewer samples or layers; 0 if it would add little information."""
    if job.name in runs:
        found = min(wanted, runs[job.name].affordable(seconds))
        return found if found >= 2 * runs[job.name].summary["samples"] else 0
    if job.part is None:
        return wanted if seconds > 0 else 0
    if job.part.name not in runs:
        return 0
    return max(0, min(wanted, runs[job.part.name].affordable(
        seconds, job.shape.num_hidden_layers / job.part.shape.num_hidden_layers)))


def peer(bench: "Bench") -> str:
    """Starts with few samples and few layers."""
    peer = Peer(bench)
    try:
        versions = peer.versions()
    except RunFailed as error:
        return f"peer: skipped, LLM Compressor does not run with {peer.python}: {reason(error)}"
    say(versions)
    rows, runs, remaining = [], {}, jobs(bench)
    for wanted in sorted(bench.arguments.samples):
        for job in list(remaining):
            try:
                samples = samples_for(job, wanted, runs, 0.8 * bench.left())
                if not samples:
                    raise RunFailed("no time left")
                runs[job.name], both = side_by_side(peer, job, samples)
                rows += both
            except RunFailed as error:  # the others may work
                remaining.remove(job)
                rows.append([f"{job.name}, {wanted} samples", reason(error), *["-"] * (len(HEADER) - 2)])
    return (f"{versions}, its GPTQ in W4A16 with scales by minmax, and Layerpress with the same; all of each process.\n\n"
            f"{table(HEADER, rows)}")


def pruning(bench: "Bench") -> str:
    """The recipes of benchmarks/peer_comparison, with the fewest samples and few layers."""
    peer, samples = Peer(bench), min(bench.arguments.samples)
    few = jobs(bench)[0]
    model = make_checkpoint(bench.scratch / few.name, few.shape)
    tokens = bench.tokens(samples, few.shape.vocab_size)
    own, rows = {}, []
    for name in PRUNING:
        own[name] = bench.compress(model, bench.scratch / "pruned", tokens, bench.arguments.device, job=("--recipe", HERE / name))
        phases = ", ".join(f"{phase} {took['seconds']:.1f}" for phase, took in own[name]["phases"].items())
        say(f"{name}: {own[name]['wall']:.1f} s, {phases}")
    for name in PRUNING:
        try:
            run = peer.compress("pruned", model, tokens, samples, ("--recipe", HERE / name))
            rows += [peer_row(Path(name).stem, run), own_row(Path(name).stem, own[name], run)]
            say(" ".join(rows[-1]))
        except RunFailed as error:  # the others may work
            rows.append([Path(name).stem, reason(error), *["-"] * (len(HEADER) - 2)])
    return f"Pruning {few.name} with {samples} samples, all of each process.\n\n{table(HEADER, rows)}"
