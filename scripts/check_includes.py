"""Checks who includes whom between the rooms of layerpress/, in sources and in CMake link lists.

The tables below are the design's. A room is a folder of layerpress/, and large rooms have parts. The headers directly in layerpress/
are the public API, whose functions the room `run` implements.
"""
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "layerpress"
PUBLIC = "public"

MAY_INCLUDE = {
    "base": set(),
    PUBLIC: {"base", "dist"},
    "dist": {"base"},
    "checkpoint": {"base"},
    "data": {"base", "checkpoint"},
    "kernels": {"base"},
    "graph": {"base"},
    "gguf": {"base", "kernels"},
    "quant": {"base", "kernels", "gguf"},
    "source": {"base", "checkpoint", "gguf", "kernels", "quant"},
    "model": {"base", "graph", "checkpoint"},
    "importer": {"base", "graph", "checkpoint", "kernels", "model"},
    "rewrite": {"base", "graph", "checkpoint", "model"},
    "compression": {"base", "graph", "kernels", "quant"},
    "residency": {"base", "graph", "checkpoint"},
    "schedule": {"base", "dist", "graph", "compression"},
    "execution": {"base", "dist", "graph", "kernels", "residency"},
    "pipeline": {"base", "dist", "graph", "kernels", "quant", "compression", "residency", "schedule", "execution"},
    "modifier": {"base", "quant", "kernels", "graph", "compression", "rewrite", "gguf"},
    "recipe": {"base", "quant", "gguf", PUBLIC},
    "target": {"base", "checkpoint", "quant", "gguf"},
}
# Each of these stands on the ones above it and on all of the table so far.
for room in ("setup", "verification", "plan", "output", "run"):
    MAY_INCLUDE[room] = set(MAY_INCLUDE)
MAY_INCLUDE["setup"] -= {"pipeline"}
MAY_INCLUDE["verification"] = {"base", "checkpoint", "compression", "gguf", "graph", "model", "quant", "source", "setup"}
MAY_INCLUDE["cli"] = MAY_INCLUDE["bindings"] = {"base", "run", PUBLIC}
# The parts of rooms that have parts: a folder in a room's folder. "" is the room's own folder. `graph` and `execution` know their
# operations, which know them.
PARTS = {
    "base": {"": set(), "files": {""}, "system": {"", "files"}},
    "cli": {"text": set(), "": {"text"}},
    "compression": {"statistics": set(), "": {"statistics"}},
    "execution": {"operations": {""}, "": {"operations"}},
    "gguf": {"blocks": set(), "container": {"blocks"}, "architectures": {"container"}, "tokenizers": {"container"},
             "": {"architectures", "blocks", "container"}},
    "graph": {"operations": {""}, "": {"operations"}, "facts": {""}, "drawing": {"", "facts"}},
    "importer": {"exported": set(), "": {"exported"}},
    "kernels": {"numbers": set(), "cpu": {"numbers"}, "cpu/bf16": {"cpu", "numbers"}, "cuda": {"numbers"}, "": {"cpu", "cuda"},
                "products": {"", "cpu"}, "scales": {"", "cpu", "cuda", "numbers", "products"},
                "solver": {"", "cpu", "cuda", "products", "scales"}, "layers": {"", "cpu", "products"}, "program": {"", "layers"},
                "device": {"", "cuda", "layers", "scales", "solver"}},
    "model": {"blocks": set(), "families": {"blocks"}, "": {"blocks", "families"}},
    "modifier": {"arguments": set(), "quantizing": {"arguments"}, "pruning": {"arguments", "quantizing"}, "rewrites": {"arguments"},
                 "": {"arguments", "pruning", "quantizing", "rewrites"}},
    "pipeline": {"sinks": set(), "": {"sinks"}},
    "quant": {"targets": set(), "": {"targets"}, "containers": {""}, "rounding": {""}},
    "run": {"compression": set(), "results": {"compression"}, "evaluation": {"results"},
            "decisions": {"compression", "results"}, "precision": {"compression", "decisions", "evaluation", "results"},
            "": {"compression", "decisions", "precision", "results"}},
    "setup": {"opening": set(), "assignment": {"opening"}, "": {"assignment", "opening"}},
}
LARGEST = 25  # sources of one folder
SOURCE_ENDINGS = {".h", ".cpp", ".cu", ".cuh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
LINKED_ROOM = re.compile(r"\blayerpress_(\w+)\b")


def room_of(path: Path) -> str:
    """The room of a file given relative to layerpress/."""
    return path.parts[0] if len(path.parts) > 1 else PUBLIC


def part_of(path: Path) -> str:
    """The part of its room that a file given relative to layerpress/ is in, or ""."""
    return "/".join(path.parts[1:-1])


def include_fault(room: str, part: str, quote: str, included: str) -> str | None:
    """The fault of one include line in a part of `room`, or None."""
    if included.startswith("layerpress/"):
        target = room_of(Path(included).relative_to("layerpress"))
        if target not in MAY_INCLUDE:
            return f'"{included}" names no room'
        if not (LIBRARY.parent / included).exists():
            return f'"{included}" does not exist'
        if target != room and target not in MAY_INCLUDE[room]:
            allowed = ", ".join(sorted(MAY_INCLUDE[room])) or "nothing"
            return f'{room} must not include {target} ("{included}"); it may include {allowed}'
        included_part = part_of(Path(included).relative_to("layerpress"))
        if target == room and included_part != part and included_part not in PARTS[room][part]:
            return f'{room}/{part} must not include {room}/{included_part} ("{included}")'
    elif quote == '"':
        return f'"{included}" must be written from the root, as "layerpress/..."'
    return None


def source_faults(path: Path) -> list[str]:
    relative = path.relative_to(LIBRARY)
    room = room_of(relative)
    if room not in MAY_INCLUDE:
        return [f"layerpress/{relative}: '{room}' is no room; add it to scripts/check_includes.py and the design"]
    part = part_of(relative)
    if part not in PARTS.get(room, {"": set()}):
        return [f"layerpress/{relative}: '{part}' is no part of {room}; add it to scripts/check_includes.py and the design"]
    faults = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        match = INCLUDE.match(line)
        fault = include_fault(room, part, *match.groups()) if match else None
        if fault:
            faults.append(f"layerpress/{relative}:{number}: {fault}")
    return faults


def link_faults(room: str) -> list[str]:
    """Rooms that a room's CMakeLists.txt links although it must not include them."""
    path = LIBRARY / room / "CMakeLists.txt"
    if not path.exists():
        return []
    text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
    linked = {name for name in LINKED_ROOM.findall(text) if name in MAY_INCLUDE and name != room}
    return [f"layerpress/{room}/CMakeLists.txt: {room} must not link {name}"
            for name in sorted(linked - MAY_INCLUDE[room])]


def size_faults(sources: list[Path]) -> list[str]:
    """Folders with more sources than a reader can keep in mind."""
    sizes = Counter(path.parent.relative_to(LIBRARY.parent) for path in sources)
    return [f"{folder}: {size} sources, more than {LARGEST}; divide it into parts"
            for folder, size in sorted(sizes.items()) if size > LARGEST]


def table_faults() -> list[str]:
    """The table itself must have no cycle."""
    done: set[str] = set()
    while len(done) < len(MAY_INCLUDE):
        ready = [room for room, targets in MAY_INCLUDE.items() if room not in done and targets <= done]
        if not ready:
            return [f"scripts/check_includes.py: the table has a cycle among {', '.join(sorted(set(MAY_INCLUDE) - done))}"]
        done.update(ready)
    return []


def main() -> int:
    sources = sorted(path for path in LIBRARY.rglob("*") if path.suffix in SOURCE_ENDINGS)
    faults = table_faults() + size_faults(sources)
    for path in sources:
        faults += source_faults(path)
    for room in MAY_INCLUDE:
        faults += link_faults(room)
    for fault in faults:
        print(f"error: [includes] {fault}", file=sys.stderr)
    print(f"includes: {len(sources)} files, {len(faults)} faults")
    return 1 if faults or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
