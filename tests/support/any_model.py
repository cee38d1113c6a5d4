"""A small random checkpoint of any causal language model that transformers can build."""

import copy

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

# Sizes by the names that configurations use; each gets those that it knows.
SIZES = {
    **dict.fromkeys(("vocab_size",), 256),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "word_embed_proj_dim", "word_embedding_dim",
                     "embedding_size", "attention_hidden_size"), 64),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "intermediate_size_mlp",
                     "encoder_ffn_dim", "decoder_ffn_dim"), 96),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                     "decoder_attention_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"), 256),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "router_top_k", "num_key_value_heads"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
                     "moe_shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("head_dim", "linear_key_head_dim", "linear_value_head_dim", "qk_nope_head_dim", "v_head_dim",
                     "kv_lora_rank"), 16),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "n_shared_head"), 1),
    **dict.fromkeys(("qk_rope_head_dim", "sliding_window", "attention_chunk_size"), 8),
    "q_lora_rank": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
}
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers",
          "num_decoder_layers", "num_encoder_layers")
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ALL_HEADS = {"num_key_value_heads": 4}
INDEXER = {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 8}

# What a type needs beside: (layers, settings).
NEEDS = {
    "axk1": (2, ALL_HEADS), "axk2": (2, {**ALL_HEADS, **INDEXER, "head_dim": 8}), "minicpm3": (2, ALL_HEADS), "glm4_moe_lite": (2, ALL_HEADS),
    "deepseek_v2": (2, {**ALL_HEADS, "first_k_dense_replace": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}),
    "deepseek_v3": (2, {**ALL_HEADS, "first_k_dense_replace": 1}),
    "deepseek_v32": (2, {**ALL_HEADS, **INDEXER, "first_k_dense_replace": 1}),
    "glm_moe_dsa": (2, {**ALL_HEADS, **INDEXER, "first_k_dense_replace": 1}),
    "dots1": (2, {"first_k_dense_replace": 1, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 2}),
    "gemma3n_text": (5, {"num_kv_shared_layers": 0}),
    "cohere_compass_text": (2, {"layer_types": ["sliding_attention", "full_attention"]}),
    "mamba2": (2, {"num_heads": 8, "head_dim": 16}), "hunyuan_v1_dense": (2, {"head_dim": 16}), "hunyuan_v1_moe": (2, {"head_dim": 16}),
    "lfm2": (2, {"layer_types": ["conv", "full_attention"]}),
    "lfm2_moe": (3, {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1}),
    "codegen": (2, {"rotary_dim": 8}), "gptj": (2, {"rotary_dim": 8}),
    "qwen3_next": (4, {}), "qwen3_5": (4, {}), "qwen3_5_text": (4, {}), "qwen3_5_moe": (4, {}),
    "qwen3_5_moe_text": (4, {}), "kimi_linear": (4, ALL_HEADS), "jamba": (8, {}),
    "zamba": (2, {"layers_block_type": ["mamba", "hybrid"]}),
    "zamba2": (4, {"layers_block_type": ["mamba", "hybrid", "hybrid", "hybrid"], "num_mem_blocks": 2}),
    "gpt_neo": (2, {"attention_types": [[["global", "local"], 1]], "num_layers": 2}),
    "granitemoehybrid": (2, {"layer_types": ["mamba", "attention"]}),
    "minimax": (2, {"layer_types": ["full_attention", "linear_attention"]}),
    "bamba": (2, {"attn_layer_indices": [1]}), "nemotron": (2, {"num_key_value_heads": 2}), "youtu": (2, ALL_HEADS),
    "zaya": (2, {"num_experts_per_tok": 1}),
    "longcat_flash": (2, {**ALL_HEADS, "head_dim": 8}), "xmod": (2, {"default_language": "en_XX"}), "ministral": (2, {"head_dim": 16}),
    "llama4": (4, {"num_experts_per_tok": 1}),
    "llama4_text": (4, {"floor_scale": 4, "attn_temperature_tuning": True, "num_experts_per_tok": 1}),
    "phi4_multimodal": (2, {
        "vision_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4},
        "audio_config": {"hidden_size": 64, "intermediate_size": 96, "num_blocks": 2, "num_attention_heads": 4,
                         "ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64, "nemo_conv_channels": 64}}),
}

# The types that must be compressed and loaded again, beside those that are written by hand.
NEW_FAMILIES = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "gemma4", "gpt_oss", "glm4_moe", "glm_moe_dsa", "deepseek_v32",
                "deepseek_v4", "kimi_linear", "minimax_m2", "nemotron_h", "llama4", "granitemoehybrid", "ministral3", "lfm2",
                "falcon_h1")


def model_types():
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def config_of(model_type, **settings):
    """A small configuration; of a composite one, the text part is small."""
    config_class = CONFIG_MAPPING[model_type]
    layers, needs = NEEDS.get(model_type, (2, {}))
    default = config_class()
    text = getattr(default, "text_config", None)
    part = default if text is None else text
    chosen = _fitting(part, layers)
    chosen.update({**needs, **settings})
    if text is None:
        return config_class(**chosen)
    return config_class(text_config=type(part)(**chosen).to_dict())


def _fitting(config, layers):
    known = {name for kind in type(config).__mro__ for name in getattr(kind, "__annotations__", {})}
    names = getattr(type(config), "attribute_map", {})
    chosen = {}
    for name, value in {**SIZES, **dict.fromkeys(LAYERS, layers)}.items():
        real = names.get(name, name)
        if name not in known and real not in known:
            continue
        try:
            usual = getattr(config, name)
        except Exception:  # one value for each layer
            continue
        if isinstance(usual, int) and not isinstance(usual, bool):
            chosen[real if real in known else name] = value
    chosen.update({name: value for name, value in TOKENS.items() if name in known})
    return chosen


def save(folder, model_type, dtype=torch.float32, seed=0, **settings):
    """Saves a model with random weights of every kind, far enough from zero to tell computations apart."""
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(model_type, **settings))
    generator = torch.Generator().manual_seed(seed + 5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.2 / parameter.shape[-1] ** 0.5, generator=generator)
            elif not name.endswith(("A_log", "dt_bias", ".D")):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        for module in model.modules():  # transformers has nothing else in these rows, and makes them so when it loads some models
            if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx] = 0
    model.to(dtype).save_pretrained(folder)
    return folder


@torch.no_grad()
def logits(folder, samples, dtype=torch.float32):
    """transformers' logits, each sample alone: [tokens, vocabulary]. Only its eager attention knows soft caps."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    return [copy.deepcopy(model)(torch.tensor([list(sample)]), use_cache=False).logits[0].float().numpy()
            for sample in samples]
