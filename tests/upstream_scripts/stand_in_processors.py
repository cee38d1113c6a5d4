"""Tokenizers and processors of the stand-in models: bytes are tokens, and the processors' own classes make few tokens of
an image or a sound."""

from __future__ import annotations

from pathlib import Path

SPECIALS = ("<pad>", "<bos>", "<eos>", "<unk>", "<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>", "<image_soft_token>",
            "<start_of_image>", "<end_of_image>", "<image>", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<|image|>", "<|python_tag|>",
            "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "<IMG_CONTEXT>", "<img>", "</img>", "<video>", "<|patch|>",
            "<|image_start|>", "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|start_header_id|>",
            "<|end_header_id|>", "<|eot_id|>", "<|audio|>", "<|audio_bos|>", "<|audio_eos|>", "<|AUDIO|>", "assistant")
# What the chat template writes for an image.
IN_TEMPLATE = {"gemma3": "<start_of_image>", "gemma4": "<|image|>", "llava": "<image>", "mistral3": "[IMG]", "mllama": "<|image|>",
               "idefics3": "<image>", "internvl": "<IMG_CONTEXT>", "llama4": "<|image|>",
               "qwen2_audio": "<|audio_bos|><|AUDIO|><|audio_eos|>"}
TEMPLATE = ("{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>{% if m.content is string %}"
            "{{ m.content }}{% else %}{% for part in m.content %}{% if part.type in ('image', 'audio') %}IMAGE{% elif part.type == 'text' %}"
            "{{ part.text }}{% endif %}{% endfor %}{% endif %}<|eot_id|>{% endfor %}")


def _alphabet() -> list[str]:
    from tokenizers.pre_tokenizers import ByteLevel

    return sorted(ByteLevel.alphabet())


def vocabulary_size() -> int:
    return 320


def token(text: str) -> int:
    return SPECIALS.index(text)


def special_ids(kind: str) -> dict:
    """The members of a config that name tokens."""
    if kind == "qwen2_audio":
        return {"audio_token_index": token("<|AUDIO|>")}
    if kind == "glm5_next":
        return {"image_token_id": token("<|image|>"), "video_token_id": token("<video>")}
    if kind.startswith("qwen"):
        return {"image_token_id": token("<|image_pad|>"), "video_token_id": token("<|video_pad|>"),
                "vision_start_token_id": token("<|vision_start|>"), "vision_end_token_id": token("<|vision_end|>")}
    if kind == "gemma4":
        return {"image_token_id": token("<|image|>"), "video_token_id": token("<video>"), "audio_token_id": token("<|audio|>")}
    if kind in ("idefics3", "internvl"):
        return {"image_token_id": token({"idefics3": "<image>", "internvl": "<IMG_CONTEXT>"}[kind])}
    names = {"gemma3": "<image_soft_token>", "llava": "<image>", "mistral3": "[IMG]", "llama4": "<|patch|>", "mllama": "<|image|>"}
    index = {"image_token_index": token(names[kind])}
    return index | ({"boi_token_index": token("<start_of_image>"), "eoi_token_index": token("<end_of_image>")} if kind == "gemma3" else {})


def tokenizer_of(kind: str = ""):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {text: number for number, text in enumerate([*SPECIALS, *_alphabet()])}
    backend = Tokenizer(models.BPE(vocab=words, merges=[], unk_token="<unk>"))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    named = {"gemma3": {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"},
             "gemma4": {"image_token": "<|image|>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>",
                        "audio_token": "<|audio|>", "boa_token": "<|audio_bos|>", "eoa_token": "<|audio_eos|>"},
             "internvl": {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>",
                          "video_token": "<video>"}}.get(kind, {})
    image = IN_TEMPLATE.get(kind, "<|vision_start|><|image_pad|><|vision_end|>")
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
                                   unk_token="<unk>", extra_special_tokens=named, chat_template=TEMPLATE.replace("IMAGE", image))


def save_tokenizer(folder: Path) -> None:
    tokenizer_of().save_pretrained(folder)


def save_processor(folder: Path, kind: str) -> None:
    """Of a model that takes images or sound."""
    processor = _processor(kind)
    if processor is not None:
        processor.save_pretrained(folder)


def _processor(kind: str):
    import transformers as hf

    make = {"qwen2_vl": _qwen, "qwen2_5_vl": _qwen, "qwen3_vl": _qwen, "qwen3_vl_moe": _qwen, "qwen3_5": _qwen, "qwen3_5_moe": _qwen,
            "gemma3": _gemma3, "gemma4": _gemma4, "llava": _llava, "mistral3": _pixtral, "mllama": _mllama, "idefics3": _idefics,
            "internvl": _internvl, "llama4": _llama4, "qwen2_audio": _qwen_audio}.get(kind)
    return None if make is None else make(hf, kind, tokenizer_of(kind))


def _qwen(hf, kind, tokenizer):
    classes = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}
    own = getattr(hf, classes.get(kind, "Qwen3VL") + "Processor")
    fields = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2}
    images = hf.Qwen2VLImageProcessor(
        **fields, size={"shortest_edge": 28 * 28, "longest_edge": 56 * 56})
    videos = getattr(hf, "Qwen2VLVideoProcessor" if kind in classes else "Qwen3VLVideoProcessor")(**fields)
    return own(image_processor=images, tokenizer=tokenizer, video_processor=videos, chat_template=tokenizer.chat_template)


def _qwen_audio(hf, kind, tokenizer):
    sound = hf.WhisperFeatureExtractor(feature_size=128, chunk_length=1)  # second
    return hf.Qwen2AudioProcessor(sound, tokenizer, chat_template=tokenizer.chat_template)


def _gemma3(hf, kind, tokenizer):
    images = hf.Gemma3ImageProcessor(size={"height": 56, "width": 56})
    return hf.Gemma3Processor(images, tokenizer, chat_template=tokenizer.chat_template, image_seq_length=4)


def _gemma4(hf, kind, tokenizer):
    images = hf.Gemma4ImageProcessor(patch_size=14, pooling_kernel_size=2, max_soft_tokens=70)
    return hf.Gemma4Processor(hf.Gemma4AudioFeatureExtractor(), images, tokenizer, hf.Gemma4VideoProcessor(),
                              chat_template=tokenizer.chat_template, image_seq_length=4)


def _llava(hf, kind, tokenizer):
    images = hf.CLIPImageProcessor(size={"height": 28, "width": 28}, crop_size={"height": 28, "width": 28})
    return hf.LlavaProcessor(images, tokenizer, patch_size=14, vision_feature_select_strategy="default",
                             chat_template=tokenizer.chat_template, num_additional_image_tokens=1)


def _pixtral(hf, kind, tokenizer):
    images = hf.PixtralImageProcessor(size={"longest_edge": 56}, patch_size={"height": 14, "width": 14})
    return hf.PixtralProcessor(images, tokenizer, patch_size=14, spatial_merge_size=2, chat_template=tokenizer.chat_template)


def _mllama(hf, kind, tokenizer):
    images = hf.MllamaImageProcessor(max_image_tiles=4, size={"height": 28, "width": 28})
    return hf.MllamaProcessor(images, tokenizer, chat_template=tokenizer.chat_template)


def _idefics(hf, kind, tokenizer):
    images = hf.Idefics3ImageProcessor(size={"longest_edge": 56}, max_image_size={"longest_edge": 56})
    return hf.Idefics3Processor(images, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template)


def _internvl(hf, kind, tokenizer):
    images = hf.GotOcr2ImageProcessor(size={"height": 56, "width": 56}, crop_to_patches=False)
    return hf.InternVLProcessor(images, tokenizer, hf.InternVLVideoProcessor(), image_seq_length=4, chat_template=tokenizer.chat_template)


def _llama4(hf, kind, tokenizer):
    images = hf.Llama4ImageProcessor(size={"height": 56, "width": 56}, max_patches=1)
    return hf.Llama4Processor(images, tokenizer, patch_size=14, chat_template=tokenizer.chat_template)
