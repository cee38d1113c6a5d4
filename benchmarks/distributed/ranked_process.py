"""Runs `layerpress oneshot` on several ranks of this machine and collects its summary and the bytes on the network."""
import json
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Also uses the other benchmarks' text, tables and machine name, and the demo's model and measurement of processes.
sys.path[1:1] = [str(HERE.parent / "peer_comparison"), str(HERE.parents[1] / "examples" / "demo")]

from contenders import OFFLINE, PROGRAM, PYTHON  # noqa: E402
from measured_process import Measured, ProcessFailed, run_measured  # noqa: E402

LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")
# The reported steps, and the phases of each.
STEPS = {"calibrate": ("forward", "gram"), "reduce": ("reduce",), "factorize": ("factorize",),
         "solve": ("observe", "solve"), "gather": ("gather", "dequantize"), "save": ("write", "finish")}


@dataclass
class RankedJob:
    """The model, the text and the settings of a run."""
    model: Path
    calibration: Path
    evaluation: Path
    samples: int
    max_seq_length: int
    group_size: int
    evaluation_samples: int
    threads: int  # of every rank; 0: the program's default
    work: Path


@dataclass
class RankedRuns:
    """All runs with one number of ranks."""
    ranks: int
    job: RankedJob
    summaries: list[dict] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    loopback_bytes: list[int] = field(default_factory=list)
    quality: dict = field(default_factory=dict)
    evaluation_seconds: float = 0

    @property
    def output(self) -> Path:
        return self.job.work / f"{self.job.model.name}-{self.ranks}-ranks"

    @property
    def summary_file(self) -> Path:
        return self.output.with_name(f"{self.output.name}.summary.json")

    def median(self, figure) -> float:
        return statistics.median(figure(summary) for summary in self.summaries)

    def largest_by_run(self, key: str) -> list[float]:
        """The largest value over the ranks, of each run."""
        return [max(rank[key] for rank in summary["ranks"]) for summary in self.summaries]

    def largest(self, key: str) -> float:
        """The largest value over the ranks, in the median run."""
        return statistics.median(self.largest_by_run(key))

    @property
    def seconds(self) -> float:
        return self.largest("seconds")

    def step_seconds(self, step: str) -> float:
        """Seconds of the slowest rank."""
        spent = lambda rank: sum(rank["phases"].get(phase, {"seconds": 0})["seconds"] for phase in STEPS[step])
        return self.median(lambda summary: max(map(spent, summary["ranks"])))

    def rest_seconds(self) -> float:
        """Seconds of the slowest rank outside all steps: start, data, and waiting outside of phases."""
        spent = {phase for phases in STEPS.values() for phase in phases}
        rest = lambda rank: rank["seconds"] - sum(phase["seconds"] for name, phase in rank["phases"].items() if name in spent)
        return self.median(lambda summary: max(map(rest, summary["ranks"])))


def say(text: str) -> None:
    """Prints progress to stderr, because stdout is the table."""
    print(text, file=sys.stderr, flush=True)


def launcher(ranks: int) -> list[str]:
    """The launcher's command; empty for one rank."""
    if ranks == 1:
        return []
    return [str(PYTHON), "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", str(ranks)]


def command(runs: RankedRuns) -> list[str]:
    job = runs.job
    threads = ["--threads", str(job.threads)] if job.threads else []
    return [*launcher(runs.ranks), str(PROGRAM), "oneshot", str(job.model), "--output", str(runs.output), "--overwrite",
            "--no-progress", "--summary", str(runs.summary_file), "--scheme", "W4A16", "--group-size", str(job.group_size),
            "--dataset", str(job.calibration), "--num-calibration-samples", str(job.samples), "--max-seq-length",
            str(job.max_seq_length), *threads]


def run_once(runs: RankedRuns) -> Measured:
    """Adds a run; its messages go to a log file."""
    runs.summary_file.unlink(missing_ok=True)
    before = int(LOOPBACK.read_text())
    measured = run_measured(command(runs), OFFLINE, runs.output.with_name(f"{runs.output.name}.log"))
    runs.loopback_bytes.append(int(LOOPBACK.read_text()) - before)
    runs.wall_seconds.append(measured.seconds)
    runs.summaries.append(json.loads(runs.summary_file.read_text(encoding="utf-8")))
    return measured


def unrelated_seconds(job: RankedJob, processes: int) -> float:
    """Seconds of the slowest of several concurrent independent processes, each with half of the samples."""
    runs = [RankedRuns(1, replace(job, samples=job.samples // 2, work=job.work / f"unrelated-{number}"))
            for number in range(processes)]
    for one in runs:
        one.job.work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(processes) as pool:
        list(pool.map(run_once, runs))
    return max(one.seconds for one in runs)


def evaluate(runs: RankedRuns) -> None:
    """KL divergence and perplexity of the output on held-out text."""
    job = runs.job
    measured = run_measured([str(PROGRAM), "eval", str(runs.output), "--reference", str(job.model), "--dataset",
                             str(job.evaluation), "--num-samples", str(job.evaluation_samples), "--max-seq-length",
                             str(job.max_seq_length), "--no-progress"], OFFLINE, job.work / "evaluate.log")
    runs.quality = json.loads(measured.output)
    runs.evaluation_seconds = measured.seconds


@dataclass
class Task:
    """What `layerpress eval --tasks` runs on a result."""
    name: str
    folder: Path | None
    limit: int  # documents; 0: all
    engine: str


def flexible_extract(runs: RankedRuns, task: Task) -> float | None:
    """The task's figure on the output; None if its data is not on this machine. The engine's time counts as evaluation time."""
    options = [*(["--task-folder", str(task.folder)] if task.folder else []), *(["--limit", str(task.limit)] if task.limit else [])]
    try:
        measured = run_measured([str(PROGRAM), "eval", str(runs.output), "--tasks", task.name, "--engine", task.engine, *options,
                                 "--no-progress"], OFFLINE, runs.job.work / "tasks.log")
    except ProcessFailed as fault:
        if "[eval.tasks] the data of" in str(fault):
            return None
        raise
    found = json.loads(measured.output)
    if "flex_extract" not in found["tasks"].get(task.name, {}):
        raise ValueError(f"the task {task.name} has no filter flexible-extract")
    runs.evaluation_seconds = found["eval_time"]
    return found["tasks"][task.name]["flex_extract"]
