"""Prints how long files and functions are, per room: the design's budgets inform, they do not block."""
import math
from pathlib import Path

import lizard

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ENDINGS = {".h", ".cpp", ".cu", ".cuh", ".py"}
BUDGET = "budget: files median about 120, nine in ten under 400, none over 800; functions nine in ten under 30; at most 5 parameters"


def rooms() -> dict[str, list[Path]]:
    """Source files by room; tests and Python are rooms of their own."""
    found: dict[str, list[Path]] = {}
    for top in ("layerpress", "python", "tests", "scripts", "examples", "benchmarks"):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in SOURCE_ENDINGS:
                parts = path.relative_to(ROOT).parts
                room = f"layerpress/{parts[1]}" if top == "layerpress" and len(parts) > 2 else top
                found.setdefault(room, []).append(path)
    return found


def quantile(values: list[int], share: float) -> int:
    """The smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def report_line(name: str, files: list[int], functions: list[int], parameters: list[int]) -> str:
    return (f"{name:22} {len(files):5} {quantile(files, 0.5):7} {quantile(files, 0.9):5} {max(files):5} "
            f"{len(functions):10} {quantile(functions, 0.5):7} {quantile(functions, 0.9):5} {max(functions, default=0):5} "
            f"{max(parameters, default=0):11}")


def main() -> None:
    print(f"{'room':22} files  median   p90   max  functions  median   p90   max  parameters")
    everything: tuple[list[int], list[int], list[int]] = ([], [], [])
    for name, paths in rooms().items():
        functions = [function for path in paths for function in lizard.analyze_file(str(path)).function_list]
        columns = ([len(path.read_text(encoding="utf-8").splitlines()) for path in paths],
                   [function.length for function in functions],
                   [function.parameter_count for function in functions])
        print(report_line(name, *columns))
        for total, column in zip(everything, columns):
            total.extend(column)
    print(report_line("all", *everything))
    print(BUDGET)


if __name__ == "__main__":
    main()
