"""A checkpoint whose Gram matrices have no rounding, so that ranks that sum in another order get the same bytes.

The embedding's elements are 1 or -1 and the norms' weights 1 or 2: a row's mean square is exactly one, and a normalized row,
rounded to bf16, is exactly its signs times the norm's weights. o_proj and down_proj are so small that what they add to the
residual stream is rounded away, so every layer and the head read small integers, whose sums of products are exact in fp32.
o_proj and down_proj themselves read fractions; `EXACT` leaves them alone.
"""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

from support import program, tiny_models

LAYERS = 6
SUBGRAPHS = LAYERS + 2  # embedding, layers, head
SIZES = {"vocab_size": tiny_models.VOCABULARY, "hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": LAYERS,
         "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "rms_norm_eps": 1e-6}
EXACT = ["--ignore", "re:.*o_proj", "re:.*down_proj"]
LENGTHS = [200, 64, 131, 256, 17, 90, 256, 33, 120, 77, 256, 5]


def integer_weight(name, weight):
    """What replaces a random weight; None keeps it."""
    if name == "model.embed_tokens.weight":
        return torch.where(weight >= 0, 1.0, -1.0)
    if name.endswith("norm.weight"):
        return torch.where(weight >= 1, 2.0, 1.0)
    if "o_proj" in name or "down_proj" in name:
        return weight * 1e-6
    return None


class ExactModel:
    """`folder`, its data and the options that compress it."""

    def __init__(self, parent, **settings):
        self.folder = tiny_models.save(parent / "model", dtype=torch.bfloat16, **{**SIZES, **settings})
        self.make_exact()
        self.samples = tiny_models.random_samples(LENGTHS, seed=3)
        self.dataset = program.write_samples(parent / "samples.jsonl", self.samples)
        self.data = ["--num-calibration-samples", str(len(LENGTHS)), "--dataset", self.dataset]
        self.scheme = [*EXACT, "--group-size", "64"]
        self.solving = [*self.scheme, *self.data]

    def make_exact(self):
        tensors = load_file(self.folder / "model.safetensors")
        for name, weight in tensors.items():
            replacement = integer_weight(name, weight.float())
            if replacement is not None:
                tensors[name] = replacement.to(weight.dtype)
        save_file(tensors, self.folder / "model.safetensors", metadata={"format": "pt"})

    def with_settings(self, folder, **changes):
        """A copy whose config.json says something else."""
        shutil.copytree(self.folder, folder)
        tiny_models.rewrite_config(folder, lambda config: config.update(changes))
        return folder


def save_tokenizer(folder):
    """A tokenizer that gives the word wN the token N, and unknown words the token of w0."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(tiny_models.VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "w0", "eos_token": "w1", "pad_token": "w1"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def differing(folder, wanted):
    """Names of tensors that are not bit for bit the wanted ones."""
    found = tiny_models.tensors(folder)
    names = found.keys() | wanted.keys()
    same = lambda a, b: a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    return sorted(name for name in names if name not in found or name not in wanted or not same(found[name], wanted[name]))
