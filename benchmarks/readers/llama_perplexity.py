"""Prints the perplexity that llama.cpp computes, as a line of JSON. Runs in .venv-llama (scripts/setup --llama).

    python llama_perplexity.py FILE.gguf ROWS.jsonl

ROWS have `input_ids`.
"""
import ctypes
import json
import math
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "gguf"))

import llama_cpp
from llama_divergence import SILENT, Model


def main() -> None:
    llama_cpp.llama_log_set(SILENT, ctypes.c_void_p(0))
    with open(sys.argv[2], encoding="utf-8") as file:
        samples = [json.loads(line)["input_ids"] for line in file]
    model = Model(sys.argv[1], max(map(len, samples)))
    losses: list[float] = []
    for sample in samples:
        found = model.log_probabilities(sample)
        losses += [-found[place, token] for place, token in enumerate(sample[1:])]
    model.close()
    print(json.dumps({"perplexity": math.exp(sum(losses) / len(losses))}))


if __name__ == "__main__":
    main()
