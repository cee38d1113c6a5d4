"""Errors of single modules' outputs after compression, on the same inputs for every checkpoint.

Prints {checkpoint: {module: relative error}}: ‖X (W - W')ᵀ‖ / ‖X Wᵀ‖ in fp64. X is the module's input in the uncompressed
model on the calibration text, so all errors use the same Gram matrix.
"""
import argparse
import json

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, CompressedTensorsConfig

MODULES = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]


def load(folder: str, **options) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype="auto", **options).eval()


def gram_of_inputs(folder: str, text: str, samples: int, length: int) -> dict[str, torch.Tensor]:
    model, tokenizer = load(folder), AutoTokenizer.from_pretrained(folder)
    grams = {}

    def watch(name):
        def add(_, inputs):
            rows = inputs[0].flatten(0, -2).double()
            grams[name] = grams.get(name, 0) + rows.T @ rows
        return add

    for name in MODULES:
        model.get_submodule(name).register_forward_pre_hook(watch(name))
    with open(text, encoding="utf-8") as lines:
        texts = [json.loads(line)["text"] for line in lines if line.strip()][:samples]
    for text_of_sample in texts:
        model.model(torch.tensor([tokenizer(text_of_sample, truncation=True, max_length=length)["input_ids"]]))
    return grams


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: model.get_submodule(name).weight.double() for name in MODULES}


def energy(weight: torch.Tensor, gram: torch.Tensor) -> float:
    return torch.einsum("nk,kl,nl->", weight, gram, weight).item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--samples", type=int, required=True)
    parser.add_argument("--max-seq-length", type=int, required=True)
    parser.add_argument("checkpoints", nargs="+")
    arguments = parser.parse_args()
    torch.set_grad_enabled(False)
    grams = gram_of_inputs(arguments.base, arguments.text, arguments.samples, arguments.max_seq_length)
    base = weights(load(arguments.base))
    errors = {}
    for folder in arguments.checkpoints:
        own = weights(load(folder, quantization_config=CompressedTensorsConfig(run_compressed=False)))
        errors[folder] = {name: (energy(base[name] - own[name], grams[name]) / energy(base[name], grams[name])) ** 0.5
                          for name in MODULES}
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
