"""Small random checkpoints of models with a vision or audio part outside the graph, samples with images or sound for them, and
transformers' logits."""

import json
from pathlib import Path

import numpy
import torch
import transformers
from layerpress_data.given_embeddings import spooled
from layerpress_data.image_embedder import ImageEmbedder
from layerpress_data.pixel_spool import PixelSpool
from layerpress_data.samples import Illustrated
from layerpress_data.token_file import write_token_file
from safetensors.numpy import load_file
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from support import program

IMAGE, START, END = 200, 202, 203
TEXT = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2}
VISION = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "num_channels": 3}
QWEN_VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 64, "patch_size": 4,
               "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64}
DELTA = {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
         "linear_value_head_dim": 16}
MOE = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}
TOKENS = {"image_token_id": IMAGE, "video_token_id": 201, "vision_start_token_id": START, "vision_end_token_id": END}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
PART_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5,
                                  "mrope_section": [2, 1, 1], "mrope_interleaved": True}}
# As wide inside as the text, as in LLaVA 1.5.
LLAVA_VISION = {**VISION, "intermediate_size": 64, "model_type": "clip_vision_model", "image_size": 16, "patch_size": 4, "projection_dim": 32}

HEARING = ("qwen2_audio",)

# type: (settings of the text, settings of the vision or audio part, others)
FAMILIES = {
    "qwen3_5": ({**TEXT, **DELTA, **PART_MROPE}, QWEN_VISION, TOKENS),
    "qwen3_5_moe": ({**TEXT, **DELTA, **MOE, **PART_MROPE}, QWEN_VISION, TOKENS),
    "qwen2_5_vl": ({**TEXT, **MROPE}, {**QWEN_VISION, "fullatt_block_indexes": [1], "window_size": 16}, TOKENS),
    "qwen3_vl": ({**TEXT, **MROPE, "num_hidden_layers": 3}, {**QWEN_VISION, "deepstack_visual_indexes": [0, 1]}, TOKENS),
    "qwen3_vl_moe": ({**TEXT, **MOE, **MROPE}, {**QWEN_VISION, "deepstack_visual_indexes": [0]}, TOKENS),
    "mistral3": ({**TEXT, "model_type": "mistral"},
                 {**VISION, "model_type": "pixtral", "head_dim": 16, "image_size": 64, "patch_size": 4},
                 {"image_token_index": IMAGE, "spatial_merge_size": 2, "vision_feature_layer": -1}),
    "llava": ({**TEXT, "model_type": "llama"}, LLAVA_VISION, {"image_token_index": IMAGE, "vision_feature_layer": -2}),
    "llama4": ({**TEXT, "num_local_experts": 4, "intermediate_size_mlp": 96, "attention_chunk_size": 8, "layer_types": None,
                "num_hidden_layers": 4},
               {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16,
                "patch_size": 4, "pixel_shuffle_ratio": 0.5, "vision_output_dim": 32, "projector_input_dim": 32,
                "projector_output_dim": 32},
               {"image_token_index": IMAGE}),
    "gemma4": ({**TEXT, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8,
                "global_head_dim": 16, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 256,
                "num_kv_shared_layers": 0},
               {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2,
                "num_key_value_heads": 2, "head_dim": 16, "patch_size": 4, "pooling_kernel_size": 2,
                "position_embedding_size": 64},
               {"image_token_id": IMAGE, "video_token_id": 201, "audio_token_id": 204, "audio_config": None}),
    "gemma3": ({**TEXT, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
               {**VISION, "image_size": 16, "patch_size": 4}, {"image_token_index": IMAGE, "mm_tokens_per_image": 4}),
    "paligemma": ({**TEXT, "model_type": "gemma"}, {**VISION, "model_type": "siglip_vision_model", "image_size": 16, "patch_size": 8},
                  {"image_token_index": IMAGE, "projection_dim": 64}),
    "qwen2_audio": (TEXT, {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "num_mel_bins": 8,
                           "max_source_positions": 16}, {"audio_token_index": IMAGE}),
}
_text, *_rest = FAMILIES["gemma4"]
FAMILIES["gemma4 bidirectional"] = ({**_text, "sliding_window": 3, "use_bidirectional_attention": "vision"}, *_rest)


def save(folder, family, dtype=torch.float32, seed=0, **settings):
    """`settings`: of the text."""
    text, part, other = FAMILIES[family]
    torch.manual_seed(seed)
    parts = {"text_config": {**text, **settings}, ("audio_config" if family in HEARING else "vision_config"): dict(part)}
    model = model_class(family).from_config(CONFIG_MAPPING[family.split()[0]](**parts, **other))
    generator = torch.Generator().manual_seed(seed + 5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.2 / parameter[0].numel() ** 0.5, generator=generator)
            elif not name.endswith(("A_log", "dt_bias")):
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.to(dtype).save_pretrained(folder)
    return folder


def model_class(family):
    return transformers.AutoModelForMultimodalLM if family in HEARING else transformers.AutoModelForImageTextToText


def pixels_of(family, images, random):
    """What the processor makes of images of 4 x `width` patches, or of sounds, and how many tokens each has."""
    widths = [4 if family not in ("qwen3_5", "qwen3_5_moe", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "mistral3") else 4 + 2 * (i % 2)
              for i in range(images)]
    normal = lambda *shape: torch.from_numpy(random.normal(size=shape).astype(numpy.float32))
    if family in HEARING:
        heard = torch.arange(32)[None] < torch.tensor([[32 - 8 * (i % 2)] for i in range(images)])
        return {"input_features": normal(images, 8, 32), "feature_attention_mask": heard.long()}, [8 - 2 * (i % 2) for i in range(images)]
    if family.startswith("qwen"):
        return {"pixel_values": torch.cat([normal(4 * w, 96) for w in widths]),
                "image_grid_thw": torch.tensor([[1, 4, w] for w in widths])}, list(widths)
    if family == "mistral3":
        padded = torch.zeros(images, 3, 16, 4 * max(widths))
        for image, w in enumerate(widths):
            padded[image, :, :, :4 * w] = normal(3, 16, 4 * w)
        return {"pixel_values": padded, "image_sizes": torch.tensor([[16, 4 * w] for w in widths])}, list(widths)
    if family.startswith("gemma4"):
        places = torch.tensor([[x, y] for y in range(4) for x in range(4)])
        return {"pixel_values": normal(images, 16, 48).sigmoid(), "image_position_ids": places.expand(images, 16, 2)}, [4] * images
    counts = {"llava": 16, "llama4": 4, "gemma3": 4, "paligemma": 4}
    return {"pixel_values": normal(images, 3, 16, 16)}, [counts[family]] * images


def sample(family, length, images, seed=0):
    """The processor's tensors of one sample: `length` tokens of text with images between them."""
    random = numpy.random.default_rng([length, images, seed])
    ids = random.integers(3, 199, size=length).tolist()
    given, counts = pixels_of(family, images, random) if images else ({}, [])
    for image, count in enumerate(counts):
        place = 2 + 3 * image + sum(counts[:image]) + 2 * image
        ids[place:place] = [START, *[IMAGE] * count, END]
    ids = torch.tensor([ids])
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids), **given}
    if images and family.startswith(("qwen", "gemma4")) and family not in HEARING:
        given["mm_token_type_ids"] = (ids == IMAGE).int()
    if images and family == "paligemma":
        given["token_type_ids"] = (torch.arange(ids.shape[1]) > ids.shape[1] - 4)[None].int()  # the answer is causal
    if images and family == "gemma3":
        given["token_type_ids"] = (ids == IMAGE).int()
    return given


def write_samples(folder, path, samples):
    """The token file that `layerpress prepare` makes of the processor's tensors."""
    embedder, spool, made = ImageEmbedder(Path(folder)), PixelSpool(path.parent), []
    for number, inputs in enumerate(samples):
        if not {"pixel_values", "input_features"} & inputs.keys():
            made.append(Illustrated(inputs["input_ids"][0].tolist()))
            continue
        tokens, given = embedder.embed(f"row {number}", inputs)
        made.append(Illustrated(tokens))
        made[-1].given = spooled(given, spool)
    write_token_file(path, made, spool if len(spool) else None)
    return path


def our_logits(folder, samples, place, dtype="float32"):
    tokens, written = write_samples(folder, place / "tokens.safetensors", samples), place / "logits.safetensors"
    program.run(folder, tokens, written, "--dtype", dtype, "--export", program=program.PRINT_LOGITS)
    lengths = [inputs["input_ids"].shape[1] for inputs in samples]
    return numpy.split(load_file(written)["logits"], numpy.cumsum(lengths)[:-1])


@torch.no_grad()
def their_logits(folder, samples):
    """transformers' logits, each sample alone."""
    family = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))["model_type"]
    model = model_class(family).from_pretrained(folder, attn_implementation="eager").eval()
    return [model(**inputs, use_cache=False).logits[0].float().numpy() for inputs in samples]


def save_processor(folder):
    """LLaVA's processor with a tokenizer of the words w1 to w199."""
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    from transformers import LlavaProcessor, PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(200)} | {"<image>": IMAGE}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken("<image>", special=True)])
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(size={"height": 16, "width": 16}, crop_size={"height": 16, "width": 16}),
        tokenizer=PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0", pad_token="w0"),
        patch_size=4, vision_feature_select_strategy="default", num_additional_image_tokens=1).save_pretrained(folder)
