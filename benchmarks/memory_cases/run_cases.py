"""Compares measured memory with plan and budget, and measures the time that a small budget costs. See benchmarks/memory."""
import argparse
import sys
from pathlib import Path

# Also uses the demo's model and the other benchmark's name of the machine.
HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parents[1] / "examples" / "demo"), str(HERE.parent / "peer_comparison")]

from cases import CASES, Result, large_checkpoint  # noqa: E402
from fetch_model import FetchError, fetch  # noqa: E402
from report import machine, table  # noqa: E402
from setting import DEFAULT_MODEL, Run, Setting, say  # noqa: E402
from watched_process import RunFailed  # noqa: E402


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="cases:\n" + "\n".join(f"  {name:16}{title}" for name, (title, _) in CASES.items()))
    parser.add_argument("--scratch", type=Path, required=True,
                        help="folder on the disk to measure; needs 40 GB for the 8b cases with all layers")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="CASE", help="default: all")
    parser.add_argument("--layers", type=int, default=32, help="layers of the Llama-3-8B shape (default 32)")
    parser.add_argument("--model", type=Path, help="small model (default: the demo's SmolLM2-135M-Instruct)")
    parser.add_argument("--model-layers", type=int, default=0, help="only its first layers (default: all)")
    parser.add_argument("--samples", type=int, default=512, help="samples of the spilling case (default 512)")
    parser.add_argument("--sample-tokens", type=int, default=2048, help="tokens of each (default 2048)")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: all usable cores)")
    parser.add_argument("--make-only", action="store_true", help="make the Llama-3-8B shaped checkpoint and stop")
    parser.add_argument("--keep", action="store_true", help="leave the compressed checkpoints in the scratch folder")
    parser.add_argument("--output", type=Path, help="file for the Markdown (default: SCRATCH/memory.md)")
    arguments = parser.parse_args()
    if min(arguments.layers, arguments.samples, arguments.sample_tokens) < 1 or min(
            arguments.model_layers, arguments.threads) < 0:
        parser.error("--layers, --samples and --sample-tokens are at least 1, --model-layers and --threads at least 0")
    return arguments


def mebibytes(count: int | None) -> str:
    return f"{count / 2**20:.0f}" if count else "-"


def row(run: Run) -> list[str]:
    predicted, measured = run.predicted_bytes, run.watched.anonymous_bytes
    estimate = run.plan.get("estimated_seconds")
    return [run.name, f"{run.watched.seconds:.1f}", f"{estimate:.1f}" if estimate else "-", mebibytes(run.budget_bytes),
            mebibytes(predicted), mebibytes(measured), f"{predicted / measured:.2f}" if predicted else "-",
            mebibytes(run.watched.resident_bytes), run.note or "-"]


def section(title: str, result: Result) -> str:
    header = ["", "seconds", "estimated s", "budget MiB", "predicted peak MiB", "measured peak MiB", "ratio", "VmHWM MiB",
              "remarks"]
    return "\n\n".join([f"### {title}", table(header, [row(run) for run in result.runs]), "\n".join(result.notes)])


def introduction() -> str:
    return (f"Made by `benchmarks/memory` on {machine()}. Seconds are wall time of the whole process. The measured peak is "
            "the largest RssAnon + RssShmem, sampled from outside every 3 ms: memory that the kernel cannot reclaim. VmHWM "
            "counts mapped file pages too. Estimated seconds and the predicted peak are from `--dry-run`, before the run.")


def setting_of(arguments: argparse.Namespace) -> Setting:
    return Setting(arguments.scratch.resolve(), (arguments.model or DEFAULT_MODEL).resolve(), arguments.layers,
                   arguments.model_layers, arguments.samples, arguments.sample_tokens, arguments.threads, arguments.keep)


def measure(arguments: argparse.Namespace) -> str:
    """Runs the cases. The file is written after every case, so that a stopped benchmark leaves its first figures."""
    setting = setting_of(arguments)
    (setting.scratch / "outputs").mkdir(parents=True, exist_ok=True)
    if arguments.make_only:
        return f"{large_checkpoint(setting)}\n"
    if arguments.model is None and {"spilling", "linear-targets"} & set(arguments.cases):
        fetch(DEFAULT_MODEL)
    text = introduction() + "\n"
    for name in arguments.cases:
        title, run = CASES[name]
        say(f"{name}: {title}")
        text += "\n" + section(title, run(setting)) + "\n"
        (arguments.output or setting.scratch / "memory.md").write_text(text, encoding="utf-8")
    return text


def main() -> int:
    arguments = parse_arguments()
    try:
        print(measure(arguments), end="")
    except (FetchError, RunFailed, ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
