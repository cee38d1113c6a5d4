"""The perplexity of a checkpoint by transformers, one sample after the other: the other side of compare_eval.py. Prints JSON."""
import argparse
import json
import math

import torch
from evaluate_checkpoints import read_samples
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--evaluation", required=True, help="JSON lines with a `text` field")
    parser.add_argument("--dtype", default="auto", help="to compute in (default: the checkpoint's)")
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--max-seq-length", type=int, default=512)
    arguments = parser.parse_args()

    torch.set_grad_enabled(False)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype).eval()
    total, predictions = 0.0, 0
    for tokens in read_samples(arguments.evaluation, arguments.model, arguments.samples, arguments.max_seq_length):
        logits = model(tokens, use_cache=False).logits[0, :-1].float()
        total += torch.nn.functional.cross_entropy(logits, tokens[0, 1:], reduction="sum").item()
        predictions += tokens.shape[1] - 1
    print(json.dumps({"perplexity": math.exp(total / predictions), "predictions": predictions}))


if __name__ == "__main__":
    main()
