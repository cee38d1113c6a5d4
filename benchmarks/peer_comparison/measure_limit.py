"""Prints the dtype in which PyTorch multiplies large matrices fastest on this machine, and that rate in GFLOP/s: the limit to compare with.

Takes the dtypes that are tried: bfloat16, float32 or both. Without fast instructions for bfloat16, float32 is faster.
"""
import sys
import time

import torch

SIZE = 4096
REPETITIONS = 8


def gflops(dtype: torch.dtype) -> float:
    left, right = (torch.randn(SIZE, SIZE).to(dtype) for _ in range(2))
    fastest = float("inf")
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        torch.mm(left, right)
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * SIZE**3 / fastest / 1e9


def main() -> None:
    rates = {name: gflops({"bfloat16": torch.bfloat16, "float32": torch.float32}[name]) for name in sys.argv[1:]}
    fastest = max(rates, key=rates.__getitem__)
    print(fastest, round(rates[fastest]))


if __name__ == "__main__":
    main()
