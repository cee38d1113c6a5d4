"""Names and keys of every family against the tables of the package gguf, which converters and readers of llama.cpp share."""

import re

import gguf
import pytest
import torch
import transformers
from support import gguf_facts, tiny_models

EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
TIED = {"tie_word_embeddings": True}
FAMILIES = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Mistral": {},
    "Mixtral": {"num_local_experts": 8},
    "Granite": {},
    "SmolLM3": TIED,
    "Qwen2": {},
    "Qwen2Moe": {**EXPERTS, "shared_expert_intermediate_size": 48},
    "Qwen3": {},
    "Qwen3Moe": {**EXPERTS, "norm_topk_prob": True},
    "Qwen3Next": {**EXPERTS, "norm_topk_prob": True, "shared_expert_intermediate_size": 48, "layer_types": ["linear_attention", "full_attention"]},
    "Qwen3_5": {"layer_types": ["linear_attention", "full_attention"]},
    "Qwen3_5Moe": {**EXPERTS, "shared_expert_intermediate_size": 48, "layer_types": ["linear_attention", "full_attention"]},
    "Gemma2": {"query_pre_attn_scalar": 16, **TIED},
    "Gemma3": {"query_pre_attn_scalar": 16, **TIED},
    "Phi3": {},
    "Olmo2": {},
    "Olmo3": {},
    "Olmoe": {"num_experts": 8, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    "Cohere2": TIED,
    "DeepseekV2": {"n_group": 1, "topk_group": 1},
    "DeepseekV3": {},
    "Lfm2": {"layer_types": ["conv", "full_attention"]},
    "Glm4": {"pad_token_id": None, "attention_bias": True},
    "GptOss": {"num_local_experts": 8, "num_experts_per_tok": 2},
}
# What llama.cpp names otherwise than its converter's table: the converter renames these tensors before it looks them up.
RENAMED = {"self_attn.sinks": "self_attn.sinks.weight", "linear_attn.dt_bias": "linear_attn.dt_proj.bias",
           "mlp.gate.e_score_correction_bias": "mlp.gate.e_score_correction.bias"}
STACKED = {"block_sparse_moe": ("w1", "w2", "w3"), "mlp": ("gate_proj", "down_proj", "up_proj")}


def tensor_names(family, folder):
    """The names in a checkpoint of the family, with experts one by one, and its config.json."""
    config_class = getattr(transformers, tiny_models.CONFIGS.get(family, family + "Config"))
    config = config_class(**{**tiny_models.SIZES, **tiny_models.NEEDS.get(family, {}), **FAMILIES[family]})
    with torch.device("meta"):
        model = getattr(transformers, family + "ForCausalLM")(config)
    config.architectures = [family + "ForCausalLM"]
    config.save_pretrained(folder)
    names = [name for name in model.state_dict() if not (config.tie_word_embeddings and name == "lm_head.weight")]
    stacked = re.compile(r"(.*)\.mlp\.experts\.(gate_up_proj|down_proj).*")
    layers = {match[1] for name in names if (match := stacked.fullmatch(name))}
    if family == "GptOss" or not layers:
        return names
    module = "block_sparse_moe" if family == "Mixtral" else "mlp"
    plain = [name.replace(".mlp.", f".{module}.") for name in names if not stacked.fullmatch(name)]
    return plain + [f"{layer}.{module}.experts.{expert}.{part}.weight"
                    for layer in layers for expert in range(8) for part in STACKED[module]]


def expected_name(table, name):
    """The table's name for a tensor; the converter stacks experts first, under names without their numbers."""
    name = re.sub(r"block_sparse_moe\.experts\.\d+", "feed_forward.experts", name)
    name = re.sub(r"experts\.\d+", "experts", name)
    if "feed_forward.experts" in name:
        name = name.removeprefix("model.")
    for old, new in RENAMED.items():
        name = name.replace(old, new)
    return table.get_name(name, try_suffixes=(".weight", ".bias"))


def check_keys(found):
    groups = (gguf.Keys.General, gguf.Keys.LLM, gguf.Keys.Attention, gguf.Keys.Rope, gguf.Keys.ShortConv, gguf.Keys.SSM)
    known = {value.replace("{arch}", found["name"]) for group in groups for value in vars(group).values() if isinstance(value, str)}
    values = gguf_facts.values(found["metadata"])
    assert values.keys() <= known
    assert values[f"{found['name']}.block_count"] == 2
    assert values[f"{found['name']}.embedding_length"] == 64


@pytest.mark.parametrize("family", FAMILIES)
def test_names_and_keys_are_those_of_the_tables(family, tmp_path):
    names = tensor_names(family, tmp_path)
    found = gguf_facts.architecture(tmp_path / "config.json", names)
    known = {text: arch for arch, text in gguf.MODEL_ARCH_NAMES.items()}
    assert found["name"] in known
    table = gguf.get_tensor_name_map(known[found["name"]], 2)
    permitted = {gguf.TENSOR_NAMES[tensor] for tensor in gguf.MODEL_TENSORS[known[found["name"]]]}
    compared = 0
    for name, placement in found["tensors"].items():
        assert placement["places"], f"{name}: {placement['left_out']}"
        for place in placement["places"]:
            pattern = re.sub(r"^blk\.\d+", "blk.{bid}", place["name"])
            assert re.sub(r"\.(weight|bias)$", "", pattern) in permitted, place
        expected = expected_name(table, name)
        if expected is None or len(placement["places"]) > 1:  # the converter splits or renames these
            assert re.search(r"kv_b_proj|gate_up_proj|_proj_bias", name), name
            continue
        assert placement["places"][0]["name"].removesuffix(".weight") == expected.removesuffix(".weight"), name
        compared += 1
    assert compared >= 15
    for tensor in found["made"]:
        assert tensor.removesuffix(".weight") in permitted
    check_keys(found)
