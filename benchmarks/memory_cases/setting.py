"""Shared by all cases: the user's choices, the program, and a monitored run of it."""
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from watched_process import MemoryWatch, Watched, run_watched

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "layerpress"
DEFAULT_MODEL = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct"


@dataclass
class Setting:
    """The options of the benchmark."""
    scratch: Path
    model: Path           # SmolLM2-135M-Instruct, or another small Llama in one file
    layers: int           # of the Llama-3-8B shape
    model_layers: int     # of the small model; 0: all
    samples: int          # of the spilling case
    sample_tokens: int
    threads: int          # 0: the program's default
    keep: bool            # leave outputs in place


@dataclass
class Run:
    """One row of the table."""
    name: str
    watched: Watched
    plan: dict = field(default_factory=dict)      # what --dry-run --json said before
    summary: dict = field(default_factory=dict)   # what --summary said afterwards
    budget_bytes: int | None = None
    note: str = ""

    @property
    def predicted_bytes(self) -> int | None:
        return self.plan.get("peak_bytes")


def say(text: str) -> None:
    """Prints progress to stderr, because stdout is the table."""
    print(text, file=sys.stderr, flush=True)


def report_progress(seconds: float, watch: MemoryWatch) -> None:
    say(f"    {seconds:.0f} s, {watch.now_bytes / 2**20:.0f} MiB now, {watch.anonymous_bytes / 2**20:.0f} MiB at most")


def parse_budget(text: str) -> int:
    """Formats bytes as 4GiB or 1536MiB."""
    units = {"MiB": 2**20, "GiB": 2**30}
    return int(text[:-3]) * units[text[-3:]]


def thread_options(setting: Setting) -> list[str]:
    return ["--threads", str(setting.threads)] if setting.threads else []


def plan(setting: Setting, arguments: list[str]) -> dict:
    """The plan of a run, without running it."""
    command = [str(PROGRAM), "oneshot", *arguments, "--dry-run", "--json", "--no-progress"]
    return json.loads(run_watched(command, setting.scratch / "plan.log").output)


def compress(setting: Setting, name: str, model: Path, options: list[str], budget: str | None = None) -> Run:
    """Plans, then runs `layerpress oneshot` into the folder `scratch/name`."""
    summary = setting.scratch / f"{name}.summary.json"
    summary.unlink(missing_ok=True)
    arguments = [str(model), "--output", str(output_of(setting, name)), "--overwrite", *options]
    arguments += ["--memory-budget", budget] if budget else []
    arguments += thread_options(setting)
    planned = plan(setting, arguments)
    say(f"  {name}: runs; predicted are {planned['peak_bytes'] / 2**20:.0f} MiB and {planned['estimated_seconds']:.0f} s")
    watched = run_watched([str(PROGRAM), "oneshot", *arguments, "--no-progress", "--summary", str(summary)],
                          setting.scratch / f"{name}.log", report_progress)
    say(f"  {name}: {watched.seconds:.1f} s, peak {watched.anonymous_bytes / 2**20:.0f} MiB")
    return Run(name, watched, planned, json.loads(summary.read_text(encoding="utf-8")),
               parse_budget(budget) if budget else None)


def output_of(setting: Setting, name: str) -> Path:
    return setting.scratch / "outputs" / name
