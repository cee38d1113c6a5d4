"""Predicts the time of a GPTQ run by the number of ranks, and where and why the speed-up stops being linear.

    python scale.py                                       the known shapes on a node of 8 GPUs and on one core per rank
    python scale.py --model Llama-3-8B --machine gpu --network 100e9
    python scale.py --check one.json two.json four.json   --summary files of the same job; the first is of one rank
"""
import argparse
import dataclasses
import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[1:1] = [str(HERE.parent / "peer_comparison"), str(HERE.parents[1] / "examples" / "demo")]

from cost_model import MACHINES, TERMS, Job, Machine, blame, first_below, machine_of, seconds, sent_bytes, speed_up  # noqa: E402
from report import table  # noqa: E402
from shapes import Shape, known_shapes, shape_of_checkpoint  # noqa: E402

RATES = [field.name for field in dataclasses.fields(Machine) if field.name != "name"]
# The phases of a summary that measure a term.
PHASES = {"save": ("write", "finish")}


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", help="known shapes, or checkpoint folders (default: all known shapes)")
    parser.add_argument("--machine", nargs="+", choices=MACHINES, default=list(MACHINES), help="default: all")
    parser.add_argument("--samples", type=int, default=512, help="calibration samples (default 512)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per sample (default 2048)")
    parser.add_argument("--bits", type=int, default=4)
    parser.add_argument("--group-size", type=int, default=128)
    parser.add_argument("--most-ranks", type=int, default=1024)
    parser.add_argument("--check", nargs="+", type=Path, metavar="SUMMARY.json", help="compare with measured runs")
    for rate in RATES:
        kind = int if rate == "ranks_per_node" else float
        parser.add_argument(f"--{rate.replace('_', '-')}", type=kind, help="replaces the machine's figure")
    arguments = parser.parse_args(words)
    positive = ["samples", "tokens", "bits", "group_size", "most_ranks", *RATES]
    for name in positive:
        value = getattr(arguments, name)
        if value is not None and not value > 0 and name not in ("start", "latency"):
            parser.error(f"--{name.replace('_', '-')} is {value}; it must be positive")
    return arguments


def adjusted(machine: Machine, arguments: argparse.Namespace) -> Machine:
    changes = {rate: getattr(arguments, rate) for rate in RATES if getattr(arguments, rate) is not None}
    return dataclasses.replace(machine, **changes)


def chosen_shapes(names: list[str] | None) -> list[Shape]:
    known = known_shapes()
    if names is None:
        return list(known.values())
    for name in names:
        if name not in known and not (Path(name) / "config.json").is_file():
            raise ValueError(f"[scale.model] {name} is neither a known shape ({', '.join(known)}) nor a checkpoint's folder")
    return [known.get(name) or shape_of_checkpoint(Path(name)) for name in names]


def rank_counts(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]


def figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def prediction(shape: Shape, job: Job, machine: Machine, most: int) -> str:
    header = ["ranks", "seconds", "speed-up", "of linear", "GB sent", *TERMS]
    rows = []
    for ranks in rank_counts(most):
        terms = seconds(shape, job, machine, ranks)
        gain = speed_up(shape, job, machine, ranks)
        rows.append([str(ranks), figure(sum(terms.values())), f"{gain:.2f}", f"{gain / ranks:.0%}",
                     figure(sent_bytes(shape, job, ranks) / 1e9), *(figure(terms[term]) for term in TERMS)])
    lines = [f"### {shape.name}, {machine.name}, {job.samples} x {job.tokens} tokens", table(header, rows)]
    for share in (0.8, 0.5):
        ranks = first_below(share, shape, job, machine, most)
        lines.append(f"Below {share:.0%} of linear from {ranks} ranks on, because of *{blame(shape, job, machine, ranks)}*."
                     if ranks else f"Not below {share:.0%} of linear up to {most} ranks.")
    return "\n\n".join(lines)


def measured_terms(summary: dict) -> dict[str, float]:
    """Seconds of the slowest rank for every term; time outside all phases counts as the start."""
    terms = {term: max(sum(rank["phases"].get(phase, {"seconds": 0})["seconds"] for phase in PHASES.get(term, (term,)))
                       for rank in summary["ranks"]) for term in TERMS}
    whole = max(rank["seconds"] for rank in summary["ranks"])
    terms["load"] = 0.0
    terms["start"] = max(0.0, whole - sum(value for term, value in terms.items() if term not in ("start", "load")))
    return terms


def check(paths: list[Path], arguments: argparse.Namespace) -> str:
    """Takes the machine's rates from the run on one rank and compares the predictions for the others."""
    summaries = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    first = summaries[0]
    if first.get("world_size") != 1:
        raise ValueError(f"[scale.check] {paths[0]}: is of {first.get('world_size')} ranks; the first must be of one")
    shape = shape_of_checkpoint(Path(first["model"]))
    job = Job(first["samples"], round(first["tokens"] / first["samples"]), arguments.bits, arguments.group_size)
    machine = machine_of(first, adjusted(MACHINES["cpu"], arguments), shape, job)
    lines = [f"### {shape.name}, {first['samples']} samples, {first['tokens']} tokens: predicted / measured seconds"]
    rows = []
    for summary in summaries:
        ranks, found = summary["world_size"], measured_terms(summary)
        expected = seconds(shape, job, machine, ranks)
        whole = max(rank["seconds"] for rank in summary["ranks"])
        cells = [f"{expected[term]:.2f} / {found[term]:.2f}" for term in TERMS if term != "load"]
        rows.append([str(ranks), f"{sum(expected.values()):.2f} / {whole:.2f}", f"{sum(expected.values()) / whole:.2f}", *cells])
    lines.append(table(["ranks", "whole", "ratio", *(term for term in TERMS if term != "load")], rows))
    return "\n\n".join(lines)


def main() -> int:
    arguments = parse_arguments()
    try:
        if arguments.check:
            print(check(arguments.check, arguments))
            return 0
        job = Job(arguments.samples, arguments.tokens, arguments.bits, arguments.group_size)
        for machine in (adjusted(MACHINES[name], arguments) for name in arguments.machine):
            for shape in chosen_shapes(arguments.model):
                print(prediction(shape, job, machine, arguments.most_ranks) + "\n")
    except (ValueError, KeyError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
