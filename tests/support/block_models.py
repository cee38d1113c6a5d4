"""Small checkpoints for GGUF files: widths that blocks of 256 divide, and a tokenizer whose tokens are bytes and what they merge to."""

import torch

from support import tiny_checkpoints, tiny_models

SIZES = {"vocab_size": 768, "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2,
         "num_hidden_layers": 3}


def save(folder, family="Llama", dtype=torch.bfloat16, **settings):
    tiny_checkpoints.save(folder, "byte_level_split")
    return tiny_models.save(folder, family, dtype=dtype, **{**SIZES, **settings})
