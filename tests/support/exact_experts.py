"""The exact model with a mixture of experts in every layer.

Routers' weights are multiples of 1/16, so that logits of the small integers they read have no rounding either: every number
of ranks routes, counts and selects the same tokens. Gate and up projections read the integers. Down projections read
fractions, whose sums differ in a last bit, and are as small as in the exact model.
"""

import torch
from safetensors.torch import load_file, save_file

from support import exact_model, program, tiny_models

LAYERS, EXPERTS = 2, 8
SIZES = {**exact_model.SIZES, "num_hidden_layers": LAYERS, "num_experts": EXPERTS, "num_experts_per_tok": 2,
         "moe_intermediate_size": 128, "head_dim": 64, "norm_topk_prob": True}
ROUTED = ["--no-moe-calibrate-all-experts", "--min-tokens-per-expert", "600"]  # more than one of several ranks has
# o_proj reads fractions and is no expert's.
HOW = ["--ignore", "re:.*o_proj", "--group-size", "64"]


class ExactExperts:
    """`folder`, its data and the options that compress it."""

    def __init__(self, parent):
        self.folder = tiny_models.save(parent / "model", "Qwen3Moe", dtype=torch.bfloat16, **SIZES)
        tensors = load_file(self.folder / "model.safetensors")
        for name, weight in tensors.items():
            if name.endswith("mlp.gate.weight"):
                replacement = (weight.float() * 16).round() / 16
            else:
                replacement = exact_model.integer_weight(name, weight.float())
            if replacement is not None:
                tensors[name] = replacement.to(weight.dtype)
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})
        self.samples = tiny_models.random_samples(exact_model.LENGTHS, seed=3)
        self.dataset = program.write_samples(parent / "samples.jsonl", self.samples)
        self.data = ["--num-calibration-samples", str(len(self.samples)), "--dataset", self.dataset]
        self.solving = [*HOW, *self.data]
        self.tokens = sum(exact_model.LENGTHS)


def down_projections():
    return [f"model.layers.{layer}.mlp.experts.{expert}.down_proj" for layer in range(LAYERS) for expert in range(EXPERTS)]
