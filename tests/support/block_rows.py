"""Weights and importances for tests of GGUF's block types, and our conversions of them."""

import subprocess
from pathlib import Path

import numpy as np

from support import program

CONVERT_BLOCKS = program.PROGRAM.parent / "convert_blocks"
ROUNDED_TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4",
                 "NVFP4"]
WEIGHTS = ["gaussian", "zeros", "constant", "negative", "outliers", "tiny", "subnormal", "huge", "positive", "unequal", "bf16"]
IMPORTANCES = ["none", "random", "zero", "one", "wide"]


def random_bits(seed, count, bits):
    """Integers below 2^bits that depend on nothing but the arguments (SplitMix64)."""
    with np.errstate(over="ignore"):
        state = (np.arange(count, dtype=np.uint64) + np.uint64(seed * 1000003)) * np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) >> np.uint64(64 - bits)


def weight(kind, rows, columns, seed=1):
    """fp32 [rows, columns], from sums of four integers, so that every machine makes the same bits."""
    count = rows * columns
    sums = random_bits(seed, 4 * count, 20).reshape(4, count).astype(np.int64).sum(0) - 2 * 2**20
    values = (sums.astype(np.float32) * np.float32(2.0**-24)).reshape(rows, columns)
    chance = random_bits(seed + 1, count, 8).reshape(rows, columns).astype(np.int32)
    if kind == "zeros":
        values[chance < 80] = 0
        values[:, : columns // 4] = 0
    elif kind in ("constant", "negative"):
        values[:] = np.abs(values[:, :1]) * np.float32(-1 if kind == "negative" else 1)
    elif kind == "outliers":
        values[chance < 4] *= 64
    elif kind in ("tiny", "huge"):
        exponents = (chance % 40).astype(np.float32)
        values = values * np.exp2(-exponents if kind == "tiny" else exponents).astype(np.float32)
    elif kind == "subnormal":
        values = values * np.float32(2.0**-126)
    elif kind == "positive":
        values = np.abs(values)
    elif kind == "unequal":
        values = values * np.repeat(np.exp2(-(chance[:, ::16] % 16).astype(np.float32)), 16, axis=1)
    elif kind == "bf16":
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.ascontiguousarray(values, dtype=np.float32)


def weights_of_all_kinds(rows, columns, seed):
    return np.concatenate([weight(kind, rows, columns, seed + index) for index, kind in enumerate(WEIGHTS)])


def importance(kind, columns, seed=5):
    """fp32 [columns], or None."""
    if kind == "none":
        return None
    if kind in ("zero", "one"):
        return np.full(columns, 0 if kind == "zero" else 1, dtype=np.float32)
    values = (random_bits(seed, columns, 16).astype(np.float32) + 1) * np.float32(2.0**-16)
    if kind == "wide":
        values *= np.exp2(-random_bits(seed + 1, columns, 4).astype(np.float32))
    return values


class Conversions:
    """Conversions that one process makes."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.jobs = []
        self.stored = {}

    def store(self, array):
        """The file of an array."""
        if id(array) not in self.stored:
            path = self.folder / f"{len(self.stored)}.raw"
            array.tofile(path)
            self.stored[id(array)] = path, array  # an array that lives keeps its id
        return self.stored[id(array)][0]

    def add(self, verb, name, columns, source, weights=None):
        target = self.folder / f"job{len(self.jobs)}.out"
        weights = "-" if weights is None else self.store(weights)
        self.jobs.append((target, f"{verb} {name} {columns} {self.store(source)} {weights} {target}"))

    def run(self):
        """The bytes of each result."""
        jobs = self.folder / "jobs.txt"
        jobs.write_text("".join(line + "\n" for _, line in self.jobs), encoding="utf-8")
        subprocess.run([CONVERT_BLOCKS, jobs], check=True, timeout=300)
        return [target.read_bytes() for target, _ in self.jobs]
