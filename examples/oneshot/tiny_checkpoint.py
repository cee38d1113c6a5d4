"""Makes a random Llama checkpoint of a few kilobytes, with a tokenizer, for trying programs.

    python tiny_checkpoint.py DIRECTORY
"""
import json
import sys
from pathlib import Path

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

HIDDEN, INTERMEDIATE, LAYERS, HEADS = 64, 128, 2, 4
WORDS = "the model reads words and weights lose bits while few answers change".split()


def config() -> dict:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "vocab_size": len(WORDS) + 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }


def weights() -> dict[str, numpy.ndarray]:
    random = numpy.random.default_rng(0)

    def matrix(rows: int, columns: int) -> numpy.ndarray:
        return (random.standard_normal((rows, columns)) / columns**0.5).astype(numpy.float32)

    ones = numpy.ones(HIDDEN, numpy.float32)
    tensors = {"model.embed_tokens.weight": matrix(len(WORDS) + 1, HIDDEN), "model.norm.weight": ones}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            tensors[f"{prefix}self_attn.{name}.weight"] = matrix(HIDDEN, HIDDEN)
        for name in ("gate_proj", "up_proj"):
            tensors[f"{prefix}mlp.{name}.weight"] = matrix(INTERMEDIATE, HIDDEN)
        tensors[f"{prefix}mlp.down_proj.weight"] = matrix(HIDDEN, INTERMEDIATE)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = ones
    return tensors


def tokenizer() -> Tokenizer:
    words = {word: index for index, word in enumerate(["<unk>", *WORDS])}
    made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return made


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config(), indent=2) + "\n")
    save_file(weights(), directory / "model.safetensors", metadata={"format": "pt"})
    tokenizer().save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
    rows = [{"text": " ".join(WORDS[start:] + WORDS[:start])} for start in range(len(WORDS))]
    (directory / "calibration.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
