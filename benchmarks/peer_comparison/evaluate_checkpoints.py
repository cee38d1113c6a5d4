"""Perplexity and KL divergence of checkpoints against a base, computed by PyTorch in fp32.

Independent of Layerpress: transformers builds the model, compressed-tensors dequantizes the weights, and the figures come
from a plain forward pass of one sample after the other. Prints one JSON object: {folder: {...}, ...}.
"""
import argparse
import json
import math
import sys
import tempfile

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def load_model(folder: str) -> torch.nn.Module:
    """Loads a plain or a compressed checkpoint with all weights as fp32."""
    config_path = f"{folder}/config.json"
    with open(config_path, encoding="utf-8") as file:
        compressed = "quantization_config" in json.load(file)
    if not compressed:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    from transformers import CompressedTensorsConfig
    # Decompressed in the checkpoint's dtype first: the stored scales define the weights; fp32 is only for the arithmetic.
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", quantization_config=CompressedTensorsConfig(run_compressed=False))
    return model.float().eval()


def read_samples(path: str, tokenizer_folder: str, count: int, length: int) -> list[torch.Tensor]:
    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    with open(path, encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines if line.strip()][:count]
    if len(texts) < count:
        print(f"warning: [evaluate] {path}: asked for {count} samples, it holds {len(texts)}", file=sys.stderr)
    return [torch.tensor([tokenizer(text, truncation=True, max_length=length)["input_ids"]]) for text in texts]


class Divergence:
    """Sums over tokens of the differences between a model and the base."""

    def __init__(self) -> None:
        self.negative_log_likelihood = 0.0
        self.divergence = 0.0
        self.agreements = 0
        self.positions = 0
        self.predictions = 0

    def add(self, tokens: torch.Tensor, reference: torch.Tensor, model: torch.Tensor) -> None:
        """tokens [n], log-probabilities [n, vocabulary]. KL counts every position, perplexity the n - 1 predicted tokens."""
        predicted = model[:-1].gather(1, tokens[1:, None])
        self.negative_log_likelihood -= predicted.double().sum().item()
        self.divergence += (reference.exp() * (reference - model)).sum(-1).double().sum().item()
        self.agreements += (reference.argmax(-1) == model.argmax(-1)).sum().item()
        self.positions += len(tokens)
        self.predictions += len(tokens) - 1

    def result(self) -> dict:
        return {
            "perplexity": math.exp(self.negative_log_likelihood / self.predictions),
            "kl_divergence": self.divergence / self.positions,
            "top1_agreement": self.agreements / self.positions,
            "tokens": self.positions,
        }


def log_probabilities(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(model(tokens).logits[0], dim=-1)


class Reference:
    """The base's log-probabilities of every sample, computed once, in a mapped file because they may exceed memory."""

    def __init__(self, folder: str, samples: list[torch.Tensor], scratch: str) -> None:
        model = load_model(folder)
        vocabulary = model.config.vocab_size
        self.rows = [tokens.shape[1] for tokens in samples]
        self.stored = torch.from_file(f"{scratch}/reference", shared=True, size=sum(self.rows) * vocabulary,
                                      dtype=torch.float32).view(-1, vocabulary)
        for tokens, target in zip(samples, self.stored.split(self.rows)):
            target.copy_(log_probabilities(model, tokens))

    def per_sample(self) -> tuple[torch.Tensor, ...]:
        return self.stored.split(self.rows)


def evaluate(reference: Reference, folder: str, samples: list[torch.Tensor]) -> dict:
    model = load_model(folder)
    divergence = Divergence()
    for tokens, expected in zip(samples, reference.per_sample()):
        divergence.add(tokens[0], expected, log_probabilities(model, tokens))
    return divergence.result()


def evaluate_base(reference: Reference, samples: list[torch.Tensor]) -> dict:
    divergence = Divergence()
    for tokens, expected in zip(samples, reference.per_sample()):
        divergence.add(tokens[0], expected, expected)
    return divergence.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True, help="folder of the uncompressed checkpoint")
    parser.add_argument("--evaluation", required=True, help="JSON lines with a `text` field")
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--max-seq-length", type=int, default=512)
    parser.add_argument("--scratch", help="folder for temporary files of a few GB; the system's if not given")
    parser.add_argument("checkpoints", nargs="*", help="folders to compare with the base")
    arguments = parser.parse_args()

    torch.set_grad_enabled(False)
    samples = read_samples(arguments.evaluation, arguments.base, arguments.samples, arguments.max_seq_length)
    with tempfile.TemporaryDirectory(dir=arguments.scratch) as scratch:
        reference = Reference(arguments.base, samples, scratch)
        results = {arguments.base: evaluate_base(reference, samples)}
        for folder in arguments.checkpoints:
            results[folder] = evaluate(reference, folder, samples)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
