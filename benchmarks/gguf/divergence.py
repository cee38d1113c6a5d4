"""How far GGUF files are from the model that they were made of: the KL divergence of their next-token distributions, computed in fp32
from the weights that the package gguf decodes.

    python divergence.py MODEL TEXT FILE.gguf...     TEXT: .jsonl with a column "text"

Prints for each file its size, bits per weight, and the mean, median, 99th percentile and greatest KL over tokens.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def batches(tokenizer, text: Path, samples: int, length: int) -> list[torch.Tensor]:
    rows = []
    for line in text.read_text(encoding="utf-8").splitlines():
        tokens = tokenizer(json.loads(line)["text"], add_special_tokens=False)["input_ids"][:length]
        if len(tokens) == length:
            rows.append(torch.tensor(tokens)[None])
        if len(rows) == samples:
            break
    return rows


@torch.no_grad()
def log_probabilities(model, rows: list[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.log_softmax(model(row).logits[0].float(), -1) for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    options = parser.parse_args()
    rows = batches(AutoTokenizer.from_pretrained(options.model), options.text, options.samples, options.length)
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    reference = log_probabilities(model, rows)
    print(f"{'file':24} {'MiB':>7} {'bits':>6} {'mean':>8} {'median':>8} {'p99':>8} {'max':>8}", flush=True)
    for file in options.files:
        model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
        found = log_probabilities(model, rows)
        divergence = torch.cat([(a.exp() * (a - b)).sum(-1) for a, b in zip(reference, found, strict=True)])
        size = file.stat().st_size
        figures = [divergence.mean(), divergence.median(), divergence.quantile(0.99), divergence.max()]
        print(f"{file.name:24} {size / 2**20:7.1f} {8 * size / parameters:6.2f} " + " ".join(f"{float(f):8.4f}" for f in figures),
              flush=True)


if __name__ == "__main__":
    main()
