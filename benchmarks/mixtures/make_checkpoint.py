"""Makes a Qwen3-MoE checkpoint with random weights and the demo model's tokenizer."""
import json
import shutil
from pathlib import Path

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt",
                   "chat_template.jinja")
# Layers like those of a real model, but few enough for two cores.
SMALL = {"hidden_size": 512, "num_hidden_layers": 6, "num_experts": 32, "moe_intermediate_size": 256,
         "num_experts_per_tok": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
         "intermediate_size": 1024}
# A layer of Qwen3-30B-A3B.
WIDE = {"hidden_size": 2048, "num_hidden_layers": 2, "num_experts": 128, "moe_intermediate_size": 768,
        "num_experts_per_tok": 8, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144}
SHAPES = {"small": SMALL, "wide": WIDE}


def make(folder: Path, shape: str, tokenizer: Path) -> Path:
    """Creates `folder` unless it is complete from an earlier run."""
    settings = SHAPES[shape]
    marker = folder / "made.json"
    if marker.exists() and json.loads(marker.read_text(encoding="utf-8")) == settings:
        return folder
    import torch  # not where only --help is asked for
    import transformers

    shutil.rmtree(folder, ignore_errors=True)
    vocabulary = json.loads((tokenizer / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    config = transformers.Qwen3MoeConfig(**settings, vocab_size=vocabulary, max_position_embeddings=4096,
                                         norm_topk_prob=True, tie_word_embeddings=False)
    torch.manual_seed(0)
    model = transformers.Qwen3MoeForCausalLM._from_config(config, dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            spread(name, parameter)
    model.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder)
    marker.write_text(json.dumps(settings), encoding="utf-8")
    return folder


def spread(name: str, parameter) -> None:
    """Weights that preserve the magnitude of their inputs, so that every layer matters."""
    if parameter.dim() == 1:
        parameter.fill_(1)
    elif "embed" not in name:
        parameter.normal_(std=parameter.shape[-1] ** -0.5)
