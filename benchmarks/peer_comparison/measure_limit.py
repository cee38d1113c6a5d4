"""Prints the highest rate, in GFLOP/s, at which PyTorch multiplies large matrices on this machine: the limit to compare with.

Takes their dtype: bfloat16 or float32.
"""
import sys
import time

import torch

SIZE = 4096
REPETITIONS = 8


def main() -> None:
    dtype = {"bfloat16": torch.bfloat16, "float32": torch.float32}[sys.argv[1]]
    left = torch.randn(SIZE, SIZE).to(dtype)
    right = torch.randn(SIZE, SIZE).to(dtype)
    fastest = float("inf")
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        torch.mm(left, right)
        fastest = min(fastest, time.perf_counter() - start)
    print(round(2 * SIZE**3 / fastest / 1e9))


if __name__ == "__main__":
    main()
