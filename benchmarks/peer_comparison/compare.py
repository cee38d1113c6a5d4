"""Runs LLM Compressor and Layerpress side by side on the same job and prints a Markdown table. See benchmarks/compare."""
import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

# Also uses the demo's model, its passages and its measurement of processes.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples" / "demo"))

from contenders import HERE, OFFLINE, PROGRAM, PYTHON, Contender, Job, contenders, run_once
from measured_process import run_measured
from report import Limit, Setting, markdown
from shared_options import add_cpu_option, add_shared_options, check_text, model_and_text, print_result


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/compare", description=__doc__)
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the demo's SmolLM2-135M-Instruct)")
    add_shared_options(parser, "every contender", "comparison")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these contenders, e.g. layerpress-gptq-hessian")
    add_cpu_option(parser)
    parser.add_argument("--skip-peer", action="store_true", help="run Layerpress alone")
    parser.add_argument("--skip-evaluation", action="store_true", help="times and memory only")
    arguments = parser.parse_args()
    check_text(parser, arguments)
    if arguments.runs < 1:
        parser.error("--runs must be at least 1")
    return arguments


def choose_contenders(arguments: argparse.Namespace) -> list[Contender]:
    chosen = contenders(with_peer=not arguments.skip_peer)
    if arguments.only is None:
        return chosen
    unknown = set(arguments.only) - {contender.name for contender in chosen}
    if unknown:
        raise ValueError(f"[compare.only] no contender is named {', '.join(sorted(unknown))}; "
                         f"there are {', '.join(contender.name for contender in chosen)}")
    return [contender for contender in chosen if contender.name in arguments.only]


def check_tokens(job: Job) -> None:
    """Refuses to compare if the two sides would calibrate with different tokens."""
    prepared = job.work / "tokens.safetensors"
    prepared.unlink(missing_ok=True)
    limits = ["--max-seq-length", str(job.max_seq_length)]
    run_measured([str(PROGRAM), "prepare", str(job.model), "--dataset", str(job.calibration), "--output", str(prepared),
                  "--num-calibration-samples", str(job.samples), *limits])
    check = run_measured([str(PYTHON), str(HERE / "check_tokens.py"), "--model", str(job.model), "--text",
                          str(job.calibration), "--prepared", str(prepared), "--samples", str(job.samples), *limits],
                         OFFLINE, job.work / "tokens.log")
    say(check.output.strip())


def evaluate(job: Job, chosen: list[Contender], arguments: argparse.Namespace, evaluation: Path) -> dict:
    """Sets every contender's quality, measured by the independent evaluator; returns the base's."""
    folders = [str(contender.output(job)) for contender in chosen]
    measured = run_measured([str(PYTHON), str(HERE / "evaluate_checkpoints.py"), "--base", str(job.model),
                             "--evaluation", str(evaluation), "--samples", str(arguments.evaluation_samples),
                             "--max-seq-length", str(job.max_seq_length), "--scratch", str(job.work), *folders],
                            OFFLINE, job.work / "evaluate.log")
    results = json.loads(measured.output)
    for contender in chosen:
        contender.quality = results[str(contender.output(job))]
    return results[str(job.model)]


def say(text: str) -> None:
    """Prints progress to stderr, because stdout is the table."""
    print(text, file=sys.stderr, flush=True)


def measure_limit(job: Job) -> Limit:
    dtypes = ["bfloat16", "float32"] if job.cpu is None else ["float32"]
    measured = run_measured([str(PYTHON), str(HERE / "measure_limit.py"), *dtypes], job.environment)
    dtype, gflops = measured.output.split()
    return Limit(dtype, float(gflops))


def record(path: Path, setting: Setting, chosen: list[Contender], base_quality: dict) -> None:
    """All measurements, for later tables."""
    path.write_text(json.dumps({"setting": asdict(setting), "base": base_quality,
                                "contenders": [asdict(contender) for contender in chosen]}, indent=1), encoding="utf-8")


def compare(arguments: argparse.Namespace) -> str:
    text = "The Debian Administrator's Handbook" if arguments.calibration is None else "the given text"
    model, calibration, evaluation = model_and_text(arguments, arguments.model)
    job = Job(model, calibration, arguments.samples, arguments.max_seq_length, arguments.group_size, arguments.work.resolve(),
              arguments.cpu)
    chosen = choose_contenders(arguments)
    if any(contender.program == "Layerpress" for contender in chosen):
        check_tokens(job)
    setting = Setting(job.model.name, text, arguments.runs, arguments.evaluation_samples, measure_limit(job))
    for turn in range(arguments.runs):
        for contender in chosen:
            run_once(contender, job)
            say(f"run {turn + 1} of {arguments.runs}: {contender.name}: {contender.runs[-1].seconds:.1f} s")
    base_quality = {} if arguments.skip_evaluation else evaluate(job, chosen, arguments, evaluation)
    record(job.work / "results.json", setting, chosen, base_quality)
    return markdown(setting, job, chosen, base_quality)


if __name__ == "__main__":
    sys.exit(print_result(compare, parse_arguments()))
