"""Prints how long files, functions and class bodies are, per room: the design's budgets inform, they do not block."""
import ast
import math
import re
from pathlib import Path

import lizard

ROOT = Path(__file__).resolve().parents[1]
SOURCE_ENDINGS = {".h", ".cpp", ".cu", ".cuh", ".py"}
LARGE_CLASS = 200  # lines of one body
BUDGET = (f"budget: files median about 120, nine in ten under 400, none over 800; functions nine in ten under 30; "
          f"class bodies under {LARGE_CLASS}; at most 5 parameters")
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
CLASS_HEAD = re.compile(r"^[ \t]*(?:class|struct)\s+(?:alignas\(\w+\)\s+)?(\w+)[^;(){}=]*\{", re.M)


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


def cpp_classes(text: str) -> dict[str, int]:
    """Lines of each class and struct body of a C++ source, by name."""
    code = NO_CODE.sub(lambda match: "\n" * match.group().count("\n"), text)
    sizes: dict[str, int] = {}
    for head in CLASS_HEAD.finditer(code):
        depth, end = 1, head.end()
        while depth > 0 and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        sizes[head.group(1)] = code.count("\n", head.start(), end) + 1
    return sizes


def classes(path: Path) -> dict[str, int]:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return cpp_classes(text)
    return {node.name: node.end_lineno - node.lineno + 1 for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}


def quantile(values: list[int], share: float) -> int:
    """The smallest value that `share` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0


def report_line(name: str, files: list[int], functions: list[int], parameters: list[int], bodies: list[int]) -> str:
    return (f"{name:22} {len(files):5} {quantile(files, 0.5):7} {quantile(files, 0.9):5} {max(files):5} "
            f"{len(functions):10} {quantile(functions, 0.5):7} {quantile(functions, 0.9):5} {max(functions, default=0):5} "
            f"{max(parameters, default=0):11} {len(bodies):8} {max(bodies, default=0):5}")


def main() -> None:
    print(f"{'room':22} files  median   p90   max  functions  median   p90   max  parameters  classes   max")
    everything: tuple[list[int], ...] = ([], [], [], [])
    large: list[tuple[int, str]] = []
    for name, paths in rooms().items():
        functions = [function for path in paths for function in lizard.analyze_file(str(path)).function_list]
        columns = ([len(path.read_text(encoding="utf-8").splitlines()) for path in paths],
                   [function.length for function in functions],
                   [function.parameter_count for function in functions],
                   [lines for path in paths for lines in classes(path).values()])
        large += [(lines, f"{path.relative_to(ROOT)}: {body}, {lines} lines")
                  for path in paths for body, lines in classes(path).items() if lines > LARGE_CLASS]
        print(report_line(name, *columns))
        for total, column in zip(everything, columns):
            total.extend(column)
    print(report_line("all", *everything))
    for _, text in sorted(large, reverse=True):
        print(f"large class: {text}")
    print(BUDGET)


if __name__ == "__main__":
    main()
