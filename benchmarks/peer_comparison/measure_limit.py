"""Prints the highest rate, in GFLOP/s, at which PyTorch multiplies bf16 matrices on this machine: the limit to compare with."""
import time

import torch

SIZE = 4096
REPETITIONS = 8


def main() -> None:
    left = torch.randn(SIZE, SIZE).bfloat16()
    right = torch.randn(SIZE, SIZE).bfloat16()
    fastest = float("inf")
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        torch.mm(left, right)
        fastest = min(fastest, time.perf_counter() - start)
    print(round(2 * SIZE**3 / fastest / 1e9))


if __name__ == "__main__":
    main()
