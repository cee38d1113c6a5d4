"""The checkpoint that both programs compress."""

import json

import grid
import torch
from support import tiny_models


def save_model(folder):
    """Random weights, and a tokenizer, without which LLM Compressor takes no data."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tiny_models.save(folder, dtype=torch.bfloat16, **grid.SIZES)
    words = {"<unk>": 0, **{f"w{i}": i for i in range(1, tiny_models.VOCABULARY)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder
