"""Stand-ins for the models that LLM Compressor's examples name: small random models of the same classes, in a local cache of the hub, where
transformers and Layerpress find them under their ids.

    python stand_in_models.py CACHE ID...
"""

from __future__ import annotations

import copy
import json
import re
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from safetensors.torch import load_file, save_file
from stand_in_processors import save_processor, save_tokenizer, special_ids, vocabulary_size
from support import any_model
from support.quantized_sources import fp8_block
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# Groups of 128 columns fit.
any_model.SIZES.update({**dict.fromkeys(("hidden_size", "n_embd", "d_model"), 128), "intermediate_size": 256,
                        **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "shared_intermediate_size",
                                         "kv_lora_rank", "q_lora_rank"), 128),
                        **dict.fromkeys(("head_dim", "qk_nope_head_dim", "v_head_dim"), 32),
                        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "max_position_embeddings": 4096})

# The type of a model by its id; the first that fits.
TYPES = (
    ("Llama-3.2-11B-Vision", "mllama"), ("Llama-4", "llama4"), ("Idefics3", "idefics3"), ("(?i)llama", "llama"),
    ("Qwen3-VL-.*A", "qwen3_vl_moe"), ("Qwen3-VL", "qwen3_vl"), ("Qwen2.5-VL", "qwen2_5_vl"), ("Qwen2-VL", "qwen2_vl"),
    ("Qwen3-Omni", "qwen3_omni_moe"), ("Qwen2-Audio", "qwen2_audio"), ("Qwen1.5-MoE", "qwen2_moe"),
    (r"Qwen3\.[568].*A\d", "qwen3_5_moe"), (r"Qwen3\.[58]", "qwen3_5"), ("Qwen3-Next", "qwen3_next"),
    ("Qwen3.*A3B", "qwen3_moe"), ("Qwen3", "qwen3"), ("Qwen2", "qwen2"),
    ("gemma-4", "gemma4"), ("gemma-3", "gemma3"), ("medgemma", "gemma3"), ("gemma-2", "gemma2"),
    ("llava", "llava"), ("pixtral", "llava of mistral"), ("Mistral-Small-3", "mistral3"), ("Mixtral", "mixtral"),
    ("InternVL3", "internvl"), ("whisper", "whisper"), ("Phi-3", "phi3"),
    ("Kimi-K3", "kimi_linear"), ("DeepSeek-V4", "deepseek_v4"), ("DeepSeek-V3.2", "deepseek_v32"), ("DeepSeek|Kimi|Moonlight", "deepseek_v3"),
    ("GLM-5.3-Flash", "glm5_next"), ("GLM-5", "glm_moe_dsa"), ("GLM-4", "glm4_moe"), ("granite-4", "granitemoehybrid"),
    ("PowerMoE", "granitemoe"), ("Hy3", "hy_v3"), ("MiniMax", "minimax_m2"), ("Mellum", "mellum"), ("Trinity", "afmoe"),
    ("Nemotron", "nemotron_h"), ("Step-3.5", "step3p5"), ("Muse", "muse_glimmer"), ("North-Mini", "cohere2_moe"), ("tinyllama", "llama"))

TEXT = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "max_position_embeddings": 4096, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
VISION = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_channels": 3}
QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 128, "patch_size": 14,
               "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 128}
DELTA = {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
         "linear_value_head_dim": 32}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 6, 6]}}
PART_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                                  "mrope_section": [4, 2, 2], "mrope_interleaved": True}}
CLIP = {**VISION, "model_type": "clip_vision_model", "image_size": 28, "patch_size": 14, "projection_dim": 32}
SIGLIP = {**VISION, "image_size": 56, "patch_size": 14}

CLASSES = {"whisper": "AutoModelForSpeechSeq2Seq", "qwen2_audio": "AutoModelForMultimodalLM", "muse_glimmer": "AutoModelForImageTextToText"}
OTHERS = {"whisper": {**dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 1)},
          "glm4_moe": {"num_hidden_layers": 4}, "glm_moe_dsa": {"num_hidden_layers": 4}}

# type: settings of the text, settings of the vision or audio part, others.
ILLUSTRATED = {
    "qwen3_5": ({**TEXT, **DELTA, **PART_MROPE}, QWEN_VISION, {}),
    "qwen3_5_moe": ({**TEXT, **DELTA, **MOE, **PART_MROPE}, QWEN_VISION, {}),
    "qwen2_vl": ({**TEXT, **MROPE}, {"depth": 2, "embed_dim": 32, "hidden_size": 128, "num_heads": 2, "mlp_ratio": 2}, {}),
    "qwen2_5_vl": ({**TEXT, **MROPE}, {**QWEN_VISION, "fullatt_block_indexes": [1], "window_size": 56}, {}),
    "qwen3_vl": ({**TEXT, **MROPE, "num_hidden_layers": 3}, {**QWEN_VISION, "deepstack_visual_indexes": [0, 1]}, {}),
    "qwen3_vl_moe": ({**TEXT, **MOE, **MROPE}, {**QWEN_VISION, "deepstack_visual_indexes": [0]}, {}),
    "mistral3": ({**TEXT, "model_type": "mistral"},
                 {**VISION, "model_type": "pixtral", "head_dim": 16, "image_size": 56, "patch_size": 14},
                 {"spatial_merge_size": 2, "vision_feature_layer": -1}),
    "llava": ({**TEXT, "model_type": "llama"}, CLIP, {"vision_feature_layer": -2}),
    "llava of mistral": ({**TEXT, "model_type": "mistral"}, CLIP, {"vision_feature_layer": -2}),
    "llama4": ({**TEXT, "num_local_experts": 4, "intermediate_size_mlp": 256, "attention_chunk_size": 64, "layer_types": None,
                "num_hidden_layers": 4},
               {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 56,
                "patch_size": 14, "pixel_shuffle_ratio": 0.5, "vision_output_dim": 32, "projector_input_dim": 32,
                "projector_output_dim": 32}, {}),
    "gemma4": ({**TEXT, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "global_head_dim": 32,
                "hidden_size_per_layer_input": 128, "vocab_size_per_layer_input": vocabulary_size(), "num_kv_shared_layers": 0},
               {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "head_dim": 16, "patch_size": 14, "pooling_kernel_size": 2, "position_embedding_size": 64},
               {"audio_config": None}),
    "gemma3": ({**TEXT, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}, SIGLIP,
               {"mm_tokens_per_image": 4}),
    "glm5_next": ({**TEXT, "num_key_value_heads": 4, "head_dim": 0, "num_hidden_layers": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
                   "moe_intermediate_size": 128, "kv_lora_rank": 128, "q_lora_rank": 128, "qk_rope_head_dim": 0, "v_head_dim": 32,
                   "qk_nope_head_dim": 32, "index_topk": 32, "index_head_dim": 32, "index_n_heads": 2, "linear_head_dim": 32,
                   "linear_num_heads": 4},
                  {"depth": 2, "hidden_size": 32, "num_heads": 2, "image_size": 56, "patch_size": 14, "out_hidden_size": 128,
                   "intermediate_size": 64, "projection_intermediate_size": 64}, {}),
    "qwen2_audio": (TEXT, {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64, "num_mel_bins": 128,
                           "max_source_positions": 50}, {}),
    "idefics3": ({**TEXT, "model_type": "llama"}, {**SIGLIP, "image_size": 56}, {"scale_factor": 2}),
    "internvl": ({**TEXT, "model_type": "qwen2"}, {**VISION, "image_size": [56, 56], "patch_size": [14, 14]},
                 {"downsample_ratio": 0.5, "image_seq_length": 4}),
    "mllama": ({**TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
               {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_global_layers": 1, "attention_heads": 2,
                "image_size": 28, "patch_size": 14, "vision_output_dim": 64, "intermediate_layers_indices": [0],
                "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1], [2, 2], [1, 3], [3, 1], [1, 4], [4, 1]], "max_num_tiles": 4}, {}),
}


# Models that are published quantized, and what does it.
QUANTIZED = {"moonshotai/Kimi-K2.6": "W4A16", "moonshotai/Kimi-K3": "MXFP4A16", "deepseek-ai/DeepSeek-V3.2": "blocks of FP8"}
DENSE = ["lm_head", "re:.*gate$", "re:.*self_attn.*", "re:.*res_proj.*", "re:.*embed_tokens.*"]


def model_type(model_id: str) -> str:
    return next(kind for pattern, kind in TYPES if re.search(pattern, model_id))


def illustrated_model(kind: str):
    text, part, other = copy.deepcopy(ILLUSTRATED[kind])
    text["vocab_size"] = vocabulary_size()
    parts = {"text_config": text, ("audio_config" if kind == "qwen2_audio" else "vision_config"): part}
    config = CONFIG_MAPPING[kind.split()[0]](**parts, **special_ids(kind.split()[0]), **other)
    return getattr(transformers, CLASSES.get(kind, "AutoModelForImageTextToText")).from_config(config)


def model_of(kind: str):
    torch.manual_seed(0)
    if kind in ILLUSTRATED:
        return illustrated_model(kind)
    any_model.SIZES["vocab_size"] = vocabulary_size()
    config = any_model.config_of(kind, **OTHERS.get(kind, {}))
    return getattr(transformers, CLASSES.get(kind, "AutoModelForCausalLM")).from_config(config)


def save(cache: Path, model_id: str) -> None:
    kind = model_type(model_id)
    home = cache / ("models--" + model_id.replace("/", "--"))
    folder = home / "snapshots" / COMMIT
    if (home / "refs" / "main").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    model = model_of(kind)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.2 / parameter[0].numel() ** 0.5, generator=generator)
    model.to(torch.bfloat16).save_pretrained(folder)
    save_tokenizer(folder)
    save_processor(folder, kind.split()[0])
    if (scheme := QUANTIZED.get(model_id)) == "blocks of FP8":
        save_blocks(folder)
    elif scheme:
        save_compressed(folder, scheme)
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(COMMIT)


def save_compressed(folder: Path, scheme: str) -> None:
    """As compressed-tensors stores it."""
    import layerpress

    dense = folder.with_name("dense")
    folder.rename(dense)
    layerpress.model_free_ptq(dense, folder, scheme=scheme, ignore=DENSE, progress=False)
    shutil.rmtree(dense)


def save_blocks(folder: Path) -> None:
    """As DeepSeek V3.2 is stored: FP8 with a scale for each block, and a second file of settings."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    for name in [name for name in tensors if name.endswith(("_proj.weight", "_with_mqa.weight", "wk.weight", "wq_b.weight"))
                 and not name.endswith("weights_proj.weight")]:
        module = name.removesuffix(".weight")
        tensors |= {f"{module}.{part}": value for part, value in fp8_block(module, tensors[name], (128, 128))[0].items()}
    save_file(tensors, file, {"format": "pt"})
    (folder / "inference").mkdir()
    (folder / "inference" / "config_671B_v3.2.json").write_text(json.dumps({"dtype": "fp8"}))


def main() -> int:
    failed = {}
    for model_id in sys.argv[2:]:
        try:
            save(Path(sys.argv[1]), model_id)
        except Exception as fault:  # one that cannot be made must not keep the others away
            failed[model_id] = f"{type(fault).__name__}: {fault}"
            print(f"stand-in {model_id}: {failed[model_id]}"[:400], file=sys.stderr)
    print(json.dumps(failed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
