"""The contenders: LLM Compressor and Layerpress with the same model, samples and scheme, each as a whole process."""
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from measured_process import Measured, run_measured

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PROGRAM = ROOT / "build" / "layerpress"
PYTHON = ROOT / ".venv" / "bin" / "python"
PEER_PYTHON = ROOT / ".venv-peer" / "bin" / "python"
# What keeps each side, and the libraries in it, from instructions that a lower CPU has not got.
INSTRUCTION_SETS = {
    "avx2": {"LAYERPRESS_CPU": "avx2", "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2",
             "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
    "avx512": {"LAYERPRESS_CPU": "avx512", "ATEN_CPU_CAPABILITY": "avx512", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE",
               "MKL_ENABLE_INSTRUCTIONS": "AVX512"},
}
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"}


def peer_dtype(cpu: str | None) -> str:
    """The one in which LLM Compressor is faster: without bf16 instructions PyTorch emulates bf16 products."""
    return "auto" if cpu is None else "float32"


@dataclass
class Job:
    """The job of both sides."""
    model: Path
    calibration: Path
    samples: int
    max_seq_length: int
    group_size: int
    work: Path
    cpu: str | None = None  # one of INSTRUCTION_SETS; None is all that the machine has

    @property
    def environment(self) -> dict[str, str]:
        return OFFLINE | INSTRUCTION_SETS.get(self.cpu, {})

    @property
    def peer_dtype(self) -> str:
        return peer_dtype(self.cpu)


@dataclass
class Contender:
    """One program with one choice of algorithm and scales, and the results of its runs."""
    program: str             # "LLM Compressor" or "Layerpress"
    algorithm: str           # gptq or rtn
    observer: str            # minmax, mse or hessian; or best, of Layerpress's qualities
    rival: str | None = None  # observer of the LLM Compressor run that the ratios are taken against
    runs: list[Measured] = field(default_factory=list)
    summaries: list[dict] = field(default_factory=list)
    quality: dict = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.program.lower().replace(' ', '-')}-{self.algorithm}-{self.observer}"

    @property
    def seconds(self) -> float:
        return statistics.median(run.seconds for run in self.runs)

    @property
    def peak_bytes(self) -> int:
        return max(run.peak_bytes for run in self.runs)

    def output(self, job: Job) -> Path:
        return job.work / self.name

    @property
    def size(self) -> int:
        return self.summaries[-1]["output_bytes"]


def contenders(with_peer: bool) -> list[Contender]:
    """All contenders in the order of running. The two programs take turns, so that slow phases of the machine affect both."""
    turns = [
        Contender("LLM Compressor", "gptq", "minmax"),
        Contender("Layerpress", "gptq", "minmax", rival="minmax"),
        Contender("LLM Compressor", "gptq", "mse"),
        Contender("Layerpress", "gptq", "mse", rival="mse"),
        Contender("Layerpress", "gptq", "hessian", rival="mse"),
        Contender("Layerpress", "gptq", "best", rival="mse"),
        Contender("Layerpress", "rtn", "minmax"),
        Contender("Layerpress", "rtn", "mse"),
    ]
    return [turn for turn in turns if with_peer or turn.program == "Layerpress"]


def command(contender: Contender, job: Job, summary: Path) -> list[str]:
    sampling = [str(job.samples), "--max-seq-length", str(job.max_seq_length)]
    if contender.program == "LLM Compressor":
        return [str(PEER_PYTHON), str(HERE / "peer_oneshot.py"), "--model", str(job.model), "--calibration",
                str(job.calibration), "--output", str(contender.output(job)), "--summary", str(summary),
                "--observer", contender.observer, "--group-size", str(job.group_size), "--dtype", job.peer_dtype,
                "--samples", *sampling]
    arguments = [str(PROGRAM), "oneshot", str(job.model), "--output", str(contender.output(job)), "--overwrite",
                 "--no-progress", "--summary", str(summary), "--algorithm", contender.algorithm, "--scheme", "W4A16",
                 "--group-size", str(job.group_size), "--ignore", "lm_head"]
    arguments += ["--quality", "best"] if contender.observer == "best" else ["--observer", contender.observer]
    if contender.algorithm == "gptq":
        arguments += ["--dataset", str(job.calibration), "--num-calibration-samples", *sampling]
    return arguments


def run_once(contender: Contender, job: Job) -> None:
    """Runs the whole process once and records its figures; its messages go to a log file."""
    summary = job.work / f"{contender.name}.summary.json"
    summary.unlink(missing_ok=True)
    measured = run_measured(command(contender, job, summary), job.environment, job.work / f"{contender.name}.log")
    figures = json.loads(summary.read_text(encoding="utf-8"))
    figures["output_bytes"] = sum(file.stat().st_size for file in contender.output(job).glob("*.safetensors"))
    contender.runs.append(measured)
    contender.summaries.append(figures)
