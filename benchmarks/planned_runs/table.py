"""Plans of runs that are never made: models of several sizes, schemes and numbers of samples, as a Markdown table."""
import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "build" / "layerpress"
sys.path += [str(ROOT / folder) for folder in ("scripts", "benchmarks/peer_comparison", "examples/demo")]

import transformers  # noqa: E402
from hollow_checkpoints import LLAMA, MODELS, write_checkpoint  # noqa: E402
from report import machine, table  # noqa: E402

LLAMA_1B = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
            "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True}
LLAMA_70B = LLAMA | {"hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
                     "intermediate_size": 28672}
QWEN3_32B = {"hidden_size": 5120, "num_hidden_layers": 64, "num_attention_heads": 64, "num_key_value_heads": 8,
             "head_dim": 128, "intermediate_size": 25600, "vocab_size": 151936}
SHAPES = {
    "Llama-3.2-1B": (transformers.LlamaForCausalLM, lambda: transformers.LlamaConfig(**LLAMA_1B)),
    "Llama-3.1-8B": MODELS["Llama-3.1-8B"],
    "Qwen3-32B": (transformers.Qwen3ForCausalLM, lambda: transformers.Qwen3Config(**QWEN3_32B)),
    "Llama-3.1-70B": (transformers.LlamaForCausalLM, lambda: transformers.LlamaConfig(**LLAMA_70B)),
    "Qwen3-30B-A3B": MODELS["Qwen3-30B-A3B"],
}


@dataclass
class Work:
    """A column: how a model is compressed, and on how much data."""
    scheme: str
    samples: int = 0
    tokens: int = 0

    def options(self) -> list[str]:
        if not self.samples:
            return ["--algorithm", "rtn", "--observer", "minmax", "--scheme", self.scheme]
        return ["--scheme", self.scheme, "--num-calibration-samples", str(self.samples),
                "--max-seq-length", str(self.tokens)]

    def title(self) -> str:
        return f"{self.scheme}, {self.samples} x {self.tokens}" if self.samples else f"{self.scheme}, no data"


WORK = [Work("FP8_DYNAMIC"), Work("W4A16", 32, 512), Work("W4A16", 128, 1024), Work("W4A16", 512, 2048)]


def plan(model: Path, work: Work, budget: str) -> dict:
    command = [str(PROGRAM), "inspect", str(model), "--plan", "--json", "--no-progress", "--memory-budget", budget]
    return json.loads(subprocess.run(command + work.options(), check=True, capture_output=True, text=True).stdout)


def fastest(model: Path, work: Work, arguments: argparse.Namespace) -> dict:
    """A plan's rates are those of one moment, in which the machine may have had other work."""
    plans = [plan(model, work, arguments.memory_budget) for _ in range(arguments.plans)]
    return min(plans, key=lambda made: made["estimated_seconds"])


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.0f} h" if seconds < 72 * 3600 else f"{seconds / 86400:.0f} days"


def cell(made: dict) -> str:
    text = f"{duration(made['estimated_seconds'])}, {made['peak_bytes'] / 2**30:.1f} GiB"
    spilled = made["spilled_bytes"] / 2**30
    return text + (f" + {spilled:.0f} GiB of disk traffic" if spilled else "")


def row(name: str, folder: Path, arguments: argparse.Namespace, rates: list[float]) -> list[str]:
    model_class, make_config = SHAPES[name]
    parameters = write_checkpoint(folder / name, model_class, make_config(), {})
    cells = [name, f"{2 * parameters / 1e9:.0f}"]
    for work in WORK:
        made = fastest(folder / name, work, arguments)
        if work.samples:
            rates.append(made["machine"]["flops_per_second"]["forward"])
        cells.append(cell(made))
        print(f"  {name}, {work.title()}: {cells[-1]}", file=sys.stderr, flush=True)
    return cells


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plans", type=int, default=3, help="plans of each run, the fastest of which counts (default: 3)")
    parser.add_argument("--memory-budget", default="16GiB", help="memory that a run may take (default: 16GiB)")
    parser.add_argument("--models", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME",
                        help=f"of {', '.join(SHAPES)} (default: all)")
    arguments = parser.parse_args()
    rates: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        rows = [row(name, Path(folder), arguments, rates) for name in arguments.models]
    print(table(["model", "GB in bf16", *(work.title() for work in WORK)], rows))
    print(f"\nMade by `benchmarks/plan_table`: plans within {arguments.memory_budget} of memory on {machine()}; the fastest of "
          f"{arguments.plans} plans each, with forward passes at {min(rates) / 1e9:.0f} to {max(rates) / 1e9:.0f} GFLOP/s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
