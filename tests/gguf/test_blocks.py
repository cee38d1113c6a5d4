"""Blocks decode to the values of the package `gguf` and round to the bytes of ggml."""

import json
import zlib
from pathlib import Path

import gguf
import numpy as np
import pytest
from support import block_rows, ggml
from support.block_rows import Conversions

CHECKSUMS = Path(__file__).with_name("ggml_checksums.json")
# Where in a block its float16 scales are; the scales of FP4 have eight bits.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "F16": [0], "BF16": [], "F32": [], "MXFP4": [], "NVFP4": []}


def random_blocks(name, rows, columns):
    """Bytes at random; float16 scales are finite."""
    values, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = block_rows.random_bits(3, rows * columns // values * size, 8).astype(np.uint8).reshape(-1, size)
    for first in HALVES[name]:
        blocks[:, first + 1] &= 0xBF  # the greatest exponent is that of infinity
    if name in ("F32", "BF16"):
        blocks[:, -1] &= 0xBF
    if name == "MXFP4":
        blocks[:, 0] %= 250
    return blocks.reshape(rows, -1)


def test_decoding(tmp_path):
    conversions = Conversions(tmp_path)
    cases = {name: random_blocks(name, 9, 1024) for name in HALVES}
    for name, blocks in cases.items():
        conversions.add("decode", name, 1024, blocks)
    for (name, blocks), result in zip(cases.items(), conversions.run(), strict=True):
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name]).astype(np.float32)
        assert np.isfinite(expected).all() and np.unique(expected).size > 100, name
        assert result == expected.tobytes(), name


def round_all(folder, rows, widths, seed):
    """Yields type, name, weight, importance and our bytes of every case."""
    conversions, cases = Conversions(folder), []
    for width in widths:
        weight = block_rows.weights_of_all_kinds(rows, width, seed)
        for given in block_rows.IMPORTANCES:
            importance = block_rows.importance(given, width, seed)
            for name in block_rows.ROUNDED_TYPES:
                cases.append((name, f"{name} {width} {given}", weight, importance))
                conversions.add("round", name, width, weight, importance)
    return zip(cases, conversions.run(), strict=True)


def frozen_checksums(folder, rounded=None):
    """A checksum per type over all cases, of our bytes or of those that rounded(name, weight, importance) makes."""
    checksums = dict.fromkeys(block_rows.ROUNDED_TYPES, 0)
    for (name, _, weight, importance), result in round_all(folder, 2, [256, 768], 1):
        checksums[name] = zlib.crc32(rounded(name, weight, importance) if rounded else result, checksums[name])
    return checksums


def test_rounding(tmp_path):
    """`record_ggml.py` made the checksums with ggml itself."""
    assert frozen_checksums(tmp_path) == json.loads(CHECKSUMS.read_text(encoding="utf-8"))


@pytest.mark.nightly
@pytest.mark.skipif(not ggml.PATHS, reason="no .venv-llama; scripts/setup --llama makes it")
def test_rounding_beside_ggml(tmp_path):
    different = [case for (name, case, weight, importance), result in round_all(tmp_path, 12, [256, 1536, 4096], 100)
                 if result != ggml.rounded(name, weight, importance)]
    assert not different
