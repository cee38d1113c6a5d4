"""Makes checkpoints of known models without their weights: config.json, and safetensors files of the right names and
shapes that hold nothing but a hole. `layerpress inspect` sees no difference.

    python hollow_checkpoints.py FOLDER
"""
import json
import math
import os
import struct
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
import torch
import transformers

LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
         "intermediate_size": 14336, "vocab_size": 128256}
QWEN3_MOE = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
             "head_dim": 128, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128,
             "num_experts_per_tok": 8, "norm_topk_prob": True, "vocab_size": 151936}
MODELS = {
    "Llama-3.1-8B": (transformers.LlamaForCausalLM, lambda: transformers.LlamaConfig(**LLAMA)),
    "Qwen3-30B-A3B": (transformers.Qwen3MoeForCausalLM, lambda: transformers.Qwen3MoeConfig(**QWEN3_MOE)),
    # The class's defaults are this model's sizes.
    "Llama-3.2-11B-Vision": (transformers.MllamaForConditionalGeneration, transformers.MllamaConfig),
}

# Prefixes of modules, and of tensors in published checkpoints where these differ.
PUBLISHED = {
    "Llama-3.2-11B-Vision": {"model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
                             "model.vision_model.": "vision_model.",
                             "model.multi_modal_projector.": "multi_modal_projector."},
}


def published_name(name, prefixes):
    for prefix, published in prefixes.items():
        if name.startswith(prefix):
            return published + name.removeprefix(prefix)
    return name


def write_hollow(path, shapes):
    """A safetensors file of bf16 tensors whose data is never written."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + end)


def write_checkpoint(folder, model_class, config, prefixes):
    """A folder with the model's config.json, and its tensors as holes. Returns the number of parameters."""
    folder.mkdir(parents=True)
    config.architectures = [model_class.__name__]
    config.save_pretrained(folder)
    with torch.device("meta"):
        model = model_class(config)
    stored = {published_name(key, prefixes): tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    if config.get_text_config().tie_word_embeddings:
        stored.pop("lm_head.weight", None)
    write_hollow(folder / "model.safetensors", stored)
    return sum(math.prod(shape) for shape in stored.values())


def main() -> int:
    for name, (model_class, make_config) in MODELS.items():
        write_checkpoint(Path(sys.argv[1]) / name, model_class, make_config(), PUBLISHED.get(name, {}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
