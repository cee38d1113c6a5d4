"""Writes sharded checkpoints as a stream: offsets are known before the first byte, one tensor is in memory at a time."""
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Callable, Iterable

ELEMENT_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I32": 4, "I64": 8}


@dataclass(frozen=True)
class TensorSpec:
    name: str
    shape: tuple[int, ...]
    dtype: str = "BF16"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * ELEMENT_BYTES[self.dtype]


# Writes a tensor's bytes to the file, possibly in pieces.
TensorWriter = Callable[[TensorSpec, BinaryIO], None]


def split_into_shards(specs: Iterable[TensorSpec], limit: int) -> list[list[TensorSpec]]:
    """Greedy in the given order; a shard has at most `limit` bytes, or one larger tensor."""
    shards: list[list[TensorSpec]] = []
    filled = 0
    for spec in specs:
        if not shards or filled + spec.bytes > limit:
            shards.append([])
            filled = 0
        shards[-1].append(spec)
        filled += spec.bytes
    return shards


def header(specs: list[TensorSpec]) -> bytes:
    """Length and JSON of a safetensors header, padded so that data starts at a multiple of eight."""
    entries: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        entries[spec.name] = {"dtype": spec.dtype, "shape": list(spec.shape), "data_offsets": [end, end + spec.bytes]}
        end += spec.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_file(path: Path, specs: list[TensorSpec], write: TensorWriter) -> None:
    """Writes one file. Raises ValueError if `write` does not write exactly a tensor's bytes."""
    with path.open("wb") as file:
        file.write(header(specs))
        for spec in specs:
            start = file.tell()
            write(spec, file)
            if file.tell() - start != spec.bytes:
                raise ValueError(f"[memory.checkpoint] {path.name}: tensor '{spec.name}' has {spec.bytes} bytes, "
                                 f"{file.tell() - start} were written")


def write_shards(folder: Path, specs: Iterable[TensorSpec], write: TensorWriter, limit: int = 5_000_000_000) -> list[Path]:
    """Writes all tensors in as many files as needed, sorted by name inside a file, and the index if there are several files."""
    shards = split_into_shards(specs, limit)
    names = ["model.safetensors"] if len(shards) == 1 else [
        f"model-{number:05}-of-{len(shards):05}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards):
        write_file(folder / name, sorted(shard, key=lambda spec: spec.name), write)
    if len(shards) > 1:
        index = {"metadata": {"total_size": sum(spec.bytes for shard in shards for spec in shard)},
                 "weight_map": {spec.name: name for name, shard in zip(names, shards) for spec in shard}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return [folder / name for name in names]


def read_header(path: Path) -> tuple[dict[str, dict], int]:
    """A file's entries by tensor name, and the offset of the data."""
    with path.open("rb") as file:
        length = struct.unpack("<Q", file.read(8))[0]
        entries = json.loads(file.read(length))
    entries.pop("__metadata__", None)
    return entries, 8 + length
