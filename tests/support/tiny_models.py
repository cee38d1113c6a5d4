"""Small random checkpoints, made and saved by transformers, whose logits are far from zero in every part."""

import copy
import json

import torch
import transformers
from safetensors.torch import load_file, save_file

VOCABULARY = 96

SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}

# What some families need beside: default ids that lie inside the vocabulary, small heads, few small experts.
LATENT = {"num_key_value_heads": 4, "q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
          "v_head_dim": 16, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32,
          "n_shared_experts": 2, "first_k_dense_replace": 1}
NEEDS = {
    "Gemma2": {"head_dim": 16}, "Gemma3": {"head_dim": 16}, "Phi3": {"pad_token_id": None},
    "SmolLM3": {"pad_token_id": None}, "DeepseekV2": LATENT, "DeepseekV3": {**LATENT, "n_group": 4, "topk_group": 2},
}
CONFIGS = {"Gemma3": "Gemma3TextConfig", "Qwen3_5": "Qwen3_5TextConfig", "Qwen3_5Moe": "Qwen3_5MoeTextConfig"}


def save(folder, family="Llama", dtype=torch.float32, seed=0, max_shard_size="5GB", **settings):
    """Saves a model of `family` with random weights of every kind, biases and norms included."""
    config_class = getattr(transformers, CONFIGS.get(family, family + "Config"))
    config = config_class(**{**SIZES, **NEEDS.get(family, {}), **settings})
    torch.manual_seed(seed)
    model = getattr(transformers, family + "ForCausalLM")(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            randomize(name, parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_()
    model.to(dtype).save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def randomize(name, parameter):
    """The usual initialization makes all logits nearly zero and all norms one: too little to tell models apart."""
    if name.endswith("norm.weight"):
        parameter.uniform_(0.6, 1.4)
    elif parameter.dim() == 1:
        parameter.normal_(std=0.3)
    else:
        parameter.normal_(std=1.5 / parameter.shape[1] ** 0.5)


def rewrite_config(folder, change):
    """Edits config.json: `change` gets the dictionary."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config, indent=2))


def load(folder, dtype=torch.float32, **options):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager", **options)
    return model.eval()


@torch.no_grad()
def logits(folder, samples, dtype=torch.float32):
    """transformers' logits, each sample alone, in a model that has seen no other: [tokens, vocabulary] in fp32."""
    model = load(folder, dtype)
    return [copy.deepcopy(model)(torch.tensor([list(sample)])).logits[0].float().numpy() for sample in samples]


def random_samples(lengths, vocabulary=VOCABULARY, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


def rewrite_tensors(folder, tensors):
    """Replaces the content of a checkpoint of one file."""
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def tensors(folder):
    """All tensors of a checkpoint, from one file or several."""
    return {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in load_file(path).items()}
