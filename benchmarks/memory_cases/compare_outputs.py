"""Compares compressed checkpoints: byte for byte, or code for code."""
import hashlib
from pathlib import Path

import numpy
from safetensors_stream import read_header

PIECE = 64 << 20


def digest(path: Path) -> str:
    """Reads in pieces, because outputs may be larger than memory."""
    found = hashlib.blake2b()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            found.update(piece)
    return found.hexdigest()


def differing_files(folder: Path, other: Path) -> list[str]:
    """Names of files that exist in only one folder or differ; empty if the folders are equal."""
    names = {file.name for file in folder.iterdir()} | {file.name for file in other.iterdir()}
    return [name for name in sorted(names) if not ((folder / name).is_file() and (other / name).is_file()) or
            digest(folder / name) != digest(other / name)]


def read_bytes(folder: Path, name: str) -> numpy.ndarray:
    """A tensor's bytes, from the file of the folder that contains it."""
    for path in sorted(folder.glob("*.safetensors")):
        entries, data = read_header(path)
        if name in entries:
            start, end = entries[name]["data_offsets"]
            return numpy.fromfile(path, dtype=numpy.uint8, count=end - start, offset=data + start)
    raise ValueError(f"[memory.compare] {folder}: no tensor '{name}'; was the module compressed to 4 bits?")


def equal_code_share(folder: Path, other: Path, modules: list[str]) -> float:
    """The fraction of equal 4-bit codes of the modules."""
    equal = total = 0
    for module in modules:
        left, right = (read_bytes(each, f"{module}.weight_packed") for each in (folder, other))
        equal += int(((left & 15) == (right & 15)).sum() + ((left >> 4) == (right >> 4)).sum())
        total += 2 * len(left)
    return equal / total
