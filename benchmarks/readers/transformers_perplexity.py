"""Prints the perplexity that transformers computes, as a line of JSON. compressed-tensors reads compressed weights and rounds inputs.

    python transformers_perplexity.py MODEL ROWS.jsonl

ROWS have `input_ids`.
"""
import json
import math
import sys

import torch
from transformers import AutoModelForCausalLM


@torch.no_grad()
def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval()
    total, predictions = 0.0, 0
    with open(sys.argv[2], encoding="utf-8") as file:
        for line in file:
            tokens = torch.tensor([json.loads(line)["input_ids"]])
            logits = model(tokens, use_cache=False).logits[0, :-1].float()
            total += torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
            predictions += tokens.shape[1] - 1
    print(json.dumps({"perplexity": math.exp(total / predictions)}))


if __name__ == "__main__":
    main()
