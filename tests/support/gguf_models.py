"""Whole models as GGUF files in fp32: the tensors of a checkpoint at the places that print_gguf says."""

import torch

from support import gguf_facts, gguf_files, tiny_models

# A small model of every family: the family, and its settings.
TIED = {"tie_word_embeddings": True}
WINDOW = {"sliding_window": 16}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 16, "linear_value_head_dim": 16}
LONG = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 1024, "short_factor": [1.5] * 8,
        "long_factor": [3.0] * 8}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
MODELS = {
    "llama": ("Llama", {}),
    "llama with biases, tied, llama3": ("Llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 64, "rope_parameters": LLAMA3,
                                                 **TIED}),
    "llama with linear positions": ("Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama with yarn": ("Llama", {"rope_parameters": YARN}),
    "llama with yarn's attention_factor": ("Llama", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "qwen3 with yarn's mscale": ("Qwen3", {"head_dim": 32, "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}),
    "granite": ("Granite", {"attention_multiplier": 0.25, "embedding_multiplier": 12.0, "residual_multiplier": 0.22,
                            "logits_scaling": 8.0}),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, **TIED}),
    "qwen2": ("Qwen2", {}),
    "qwen2 moe": ("Qwen2Moe", {"shared_expert_intermediate_size": 48, **EXPERTS}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3 moe": ("Qwen3Moe", {"norm_topk_prob": True, **EXPERTS}),
    "qwen3 next": ("Qwen3Next", {"num_hidden_layers": 4, "head_dim": 32, "norm_topk_prob": True, **DELTA, "linear_num_value_heads": 4,
                                 "shared_expert_intermediate_size": 48, **EXPERTS}),
    "qwen3 next, every other layer": ("Qwen3Next", {
        "head_dim": 32, "norm_topk_prob": True, **DELTA, "layer_types": ["linear_attention", "full_attention"],
        "shared_expert_intermediate_size": 48, **EXPERTS}),
    "qwen3.5": ("Qwen3_5", {"num_hidden_layers": 4, "head_dim": 32, **DELTA, "linear_num_value_heads": 6}),
    "qwen3.5, as many values as keys": ("Qwen3_5", {"num_hidden_layers": 4, "head_dim": 32, **DELTA, **TIED}),
    "qwen3.5 moe": ("Qwen3_5Moe", {"num_hidden_layers": 4, "head_dim": 32, **DELTA, "linear_num_value_heads": 4,
                                   "shared_expert_intermediate_size": 48, **EXPERTS}),
    "gemma2": ("Gemma2", {"query_pre_attn_scalar": 16, **TIED, **WINDOW}),
    "gemma3": ("Gemma3", {"query_pre_attn_scalar": 16, "num_hidden_layers": 7, **TIED, **WINDOW}),
    "phi3": ("Phi3", {"sliding_window": None, "original_max_position_embeddings": 64}),
    "phi3 with longrope": ("Phi3", {"sliding_window": None, "max_position_embeddings": 4096, "rope_parameters": LONG,
                                    "original_max_position_embeddings": 1024}),
    "olmo2": ("Olmo2", {}),
    "olmo3": ("Olmo3", {"num_hidden_layers": 4, **WINDOW}),
    "olmo3 with yarn and another base": ("Olmo3", {"num_hidden_layers": 4, **WINDOW, "rope_parameters": {
        "full_attention": YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4}),
    "cohere2": ("Cohere2", {"num_hidden_layers": 4, **TIED, **WINDOW}),
    "deepseek v2": ("DeepseekV2", {"n_group": 1, "topk_group": 1, "topk_method": "greedy"}),
    "deepseek v2 with yarn": ("DeepseekV2", {"n_group": 1, "topk_group": 1, "topk_method": "greedy",
                                             "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7}}),
    "deepseek v3": ("DeepseekV3", {"scoring_func": "sigmoid"}),
    "lfm2": ("Lfm2", {"layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "glm4": ("Glm4", {"head_dim": 16, "attention_bias": True, "pad_token_id": None, "eos_token_id": 1}),
    "glm4 with whole heads rotated": ("Glm4", {"head_dim": 16, "attention_bias": True, "pad_token_id": None, "eos_token_id": 1,
                                               "partial_rotary_factor": 1.0}),
    "gpt-oss": ("GptOss", {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, **WINDOW,
                           "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0}}),
}


def rows_of(tensor, place):
    """The rows that the place takes; those of vectors in a stack are their last dimension."""
    parts, first, count = place["rows"]
    axis = tensor.dim() - (1 if place["name"].endswith(".bias") else 2)
    shape = list(tensor.shape)
    divided = tensor.reshape(shape[:axis] + [parts, shape[axis] // parts] + shape[axis + 1:]).narrow(axis + 1, first, count)
    return divided if place.get("stacked_parts") else divided.reshape(shape[:axis] + [parts * count] + shape[axis + 1:])


def placed(tensor, place):
    """What becomes of a tensor on the way to its place."""
    if place.get("transposed_first"):
        tensor = tensor.transpose(-1, -2)
    if "rows" in place:
        tensor = rows_of(tensor, place)
    if place.get("transposed_last"):
        tensor = tensor.transpose(-1, -2)
    if heads := place.get("paired_heads"):
        halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
        tensor = halves.swapaxes(1, 2).reshape(tensor.shape)
    if heads := place.get("tiled_rows"):
        keys, of_key, first = heads
        tiled = tensor[first:].reshape(keys, of_key, -1, *tensor.shape[1:]).swapaxes(0, 1)
        tensor = torch.cat([tensor[:first], tiled.reshape(tensor[first:].shape)])
    if heads := place.get("tiled_columns"):
        keys, of_key, _ = heads
        tensor = tensor.reshape(*tensor.shape[:-1], keys, of_key, -1).swapaxes(-3, -2).reshape(tensor.shape)
    tensor = tensor + place.get("added", 0)
    if place.get("negative_exponential"):
        tensor = -tensor.exp()
    return (tensor.squeeze() if place.get("squeezed") else tensor).contiguous()


def write(folder, file):
    """The checkpoint in `folder` as a GGUF without a tokenizer."""
    tensors = {name: torch.as_tensor(tensor).float() for name, tensor in tiny_models.tensors(folder).items()}
    found = gguf_facts.architecture(folder / "config.json", tensors)
    written, stacks = {name: torch.tensor(values) for name, values in found["made"].items()}, {}
    for name, tensor in tensors.items():
        for place in found["tensors"][name]["places"]:
            if "expert" in place:
                stacks.setdefault(place["name"], {})[place["expert"]] = placed(tensor, place)
            else:
                written[place["name"]] = placed(tensor, place)
    for name, experts in stacks.items():
        written[name] = torch.stack([experts[number] for number in range(len(experts))])
    metadata = [*found["metadata"], ["tokenizer.ggml.model", ["string", "none"]]]
    if not any(key.endswith(".vocab_size") for key, _ in metadata):
        metadata.append([found["name"] + ".vocab_size", ["u32", tiny_models.VOCABULARY]])
    return gguf_files.write(file, found["name"], metadata, [(name, tensor.numpy()) for name, tensor in written.items()])
