"""Token ids equal to transformers' for every kind of tokenizer and every way in which checkpoints declare one."""

import sys
import types

import pytest
from layerpress_data.checkpoint_tokenizer import CheckpointTokenizer, load_tokenizer
from layerpress_data.errors import MissingPackageError
from layerpress_data.transformers_tokenizer import TransformersTokenizer
from support import tiny_checkpoints
from transformers import AutoTokenizer

IM_END = {"__type": "AddedToken", "content": "<|im_end|>", "lstrip": True, "rstrip": True, "normalized": False}
IM_END.update(single_word=False, special=True)


def plain(token):
    return {name: value for name, value in token.items() if name != "__type"}


# kind, model type, changes of tokenizer_config.json, further files
KNOWN = {
    "backend": ("byte_level", "llama", {}, {}),
    "old name of the backend": ("byte_level", "mistral", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    "no class named": ("byte_level", "qwen3", {"tokenizer_class": None}, {}),
    "no class named or registered": ("metaspace_bpe", "llama", {"tokenizer_class": None}, {}),
    "qwen2": ("byte_level_split", "qwen2", {"tokenizer_class": "Qwen2Tokenizer"}, {}),
    "qwen3": ("byte_level_split", "qwen3", {"tokenizer_class": "Qwen2TokenizerFast"}, {}),
    "qwen2 naming another class": ("byte_level", "qwen2", {"tokenizer_class": "LlamaTokenizerFast"}, {}),
    "qwen3 naming the backend": ("byte_level", "qwen3", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    "qwen3 naming llama": ("metaspace_bpe", "qwen3", {"tokenizer_class": "LlamaTokenizer"}, {}),
    "qwen2, prefix space": ("byte_level_split", "qwen2", {"add_prefix_space": True}, {}),
    "gpt2": ("byte_level", "llama", {"tokenizer_class": "GPT2Tokenizer"}, {}),
    "gpt2, prefix space": ("byte_level", "llama", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, {}),
    "gpt2 over a sentencepiece vocabulary": ("metaspace_bpe", "llama", {"tokenizer_class": "GPT2Tokenizer"}, {}),
    "gpt2 over a vocabulary with whole words": ("byte_level_bos", "llama", {"tokenizer_class": "GPT2Tokenizer"}, {}),
    "llama 2": ("metaspace_bpe", "llama", {"tokenizer_class": "LlamaTokenizer"}, {}),
    "llama 2, legacy": ("metaspace_bpe", "llama", {"tokenizer_class": "LlamaTokenizerFast", "legacy": True}, {}),
    "llama 2, no prefix": (
        "metaspace_bpe",
        "llama",
        {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False},
        {},
    ),
    "llama 2, bos and eos switched": (
        "metaspace_bpe",
        "llama",
        {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True},
        {},
    ),
    "backend, bos switched off": ("metaspace_bpe", "mistral", {"add_bos_token": False}, {}),
    "mistral naming llama": ("metaspace_bpe", "mistral", {"tokenizer_class": "LlamaTokenizer"}, {}),
    "phi3 naming llama": ("metaspace_bpe", "phi3", {"tokenizer_class": "LlamaTokenizer"}, {}),
    "deepseek naming llama": ("byte_level", "deepseek_v3", {"tokenizer_class": "LlamaTokenizerFast"}, {}),
    "granite naming gpt2": ("byte_level", "granite", {"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": True}, {}),
    "gpt-oss": ("byte_level", "gpt_oss", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    "smollm3, no class named": ("byte_level", "smollm3", {"tokenizer_class": None}, {}),
    "llama 3": ("byte_level_bos", "llama", {"tokenizer_class": "PreTrainedTokenizerFast"}, {}),
    "llama 3 naming llama 2's class": ("byte_level_bos", "llama", {"tokenizer_class": "LlamaTokenizerFast"}, {}),
    "unigram": ("unigram", "llama", {}, {}),
    "unigram, mistral": ("unigram", "mistral", {"tokenizer_class": "LlamaTokenizer"}, {}),
    "wordpiece": ("wordpiece", "llama", {}, {}),
    "token missing in the file": ("byte_level", "llama", {"pad_token": "<extra>"}, {}),
    "model-specific token": ("byte_level", "llama", {"image_token": "<image>"}, {}),
    "named extra tokens": ("byte_level", "llama", {"extra_special_tokens": {"image_token": "<image>"}}, {}),
    "extra tokens": ("byte_level_split", "qwen2", {"extra_special_tokens": ["<image>", "<extra>"]}, {}),
    "additional tokens": ("byte_level", "llama", {"additional_special_tokens": ["<image>", "<extra>"]}, {}),
    "added tokens with other flags": ("byte_level", "llama", {"added_tokens_decoder": {"2": plain(IM_END)}}, {}),
    "added tokens at new ids": (
        "byte_level_split",
        "qwen2",
        {"added_tokens_decoder": {"9000": {**plain(IM_END), "content": "<image>"}, "2": plain(IM_END)}},
        {},
    ),
    "two added tokens, the later id first": (
        "byte_level",
        "llama",
        {
            "added_tokens_decoder": {
                "9001": {**plain(IM_END), "content": "<extra>"},
                "9000": {**plain(IM_END), "content": "<image>"},
            }
        },
        {},
    ),
    "ordinary added token that is named, special tokens split": (
        "byte_level",
        "llama",
        {
            "added_tokens_decoder": {"9000": {**plain(IM_END), "content": "<image>", "special": False}},
            "pad_token": "<image>",
            "split_special_tokens": True,
        },
        {},
    ),
    "token written as an object": ("byte_level", "llama", {"eos_token": IM_END}, {}),
    "special_tokens_map.json": (
        "byte_level",
        "llama",
        {"pad_token": None},
        {"special_tokens_map.json": {"pad_token": {**plain(IM_END), "content": "<extra>"}, "image_token": "<image>"}},
    ),
    "additional tokens in special_tokens_map.json": (
        "byte_level",
        "llama",
        {},
        {"special_tokens_map.json": {"additional_special_tokens": ["<image>", "<extra>"]}},
    ),
    "additional tokens in both files": (
        "byte_level",
        "llama",
        {"additional_special_tokens": ["<image>"]},
        {"special_tokens_map.json": {"additional_special_tokens": ["<extra>"]}},
    ),
    "extra tokens in both files": (
        "byte_level",
        "llama",
        {"extra_special_tokens": ["<image>"]},
        {"special_tokens_map.json": {"extra_special_tokens": ["<image>", {"content": "<extra>", "lstrip": True}]}},
    ),
    "added_tokens.json": ("byte_level", "llama", {}, {"added_tokens.json": {"<image>": 700, "<extra>": 701}}),
    "special tokens split": ("byte_level", "llama", {"split_special_tokens": True}, {}),
    "truncated from the left": ("metaspace_bpe", "llama", {"truncation_side": "left"}, {}),
}

# What is left to transformers: classes and settings that are not followed here.
LEFT_TO_TRANSFORMERS = {
    "another model type": ("byte_level", "gpt2", {}, {}),
    "another class": ("wordpiece", "llama", {"tokenizer_class": "BertTokenizer"}, {}),
    "corrected pattern": ("byte_level", "mistral", {"fix_mistral_regex": True}, {}),
}


def assert_equal_to_transformers(tokenizer, directory):
    reference = AutoTokenizer.from_pretrained(directory)
    for max_length in (None, 7, 64):
        limits = {} if max_length is None else {"truncation": True, "max_length": max_length}
        for special in (True, False):
            expected = [reference(t, add_special_tokens=special, **limits)["input_ids"] for t in tiny_checkpoints.TEXTS]
            assert tokenizer.encode(tiny_checkpoints.TEXTS, max_length, special) == expected
    assert any(len(tokens) > 7 for tokens in tokenizer.encode(tiny_checkpoints.TEXTS, None, True))


@pytest.mark.parametrize("case", KNOWN)
def test_known_declarations(case, tmp_path):
    kind, model_type, settings, files = KNOWN[case]
    directory = tiny_checkpoints.save(tmp_path, kind, model_type, settings, files)
    tokenizer = load_tokenizer(directory)
    assert isinstance(tokenizer, CheckpointTokenizer), "transformers was asked although the case is known"
    assert_equal_to_transformers(tokenizer, directory)


@pytest.mark.parametrize("case", LEFT_TO_TRANSFORMERS)
def test_declarations_left_to_transformers(case, tmp_path):
    kind, model_type, settings, files = LEFT_TO_TRANSFORMERS[case]
    directory = tiny_checkpoints.save(tmp_path, kind, model_type, settings, files)
    tokenizer = load_tokenizer(directory)
    assert isinstance(tokenizer, TransformersTokenizer)
    assert_equal_to_transformers(tokenizer, directory)


def test_without_tokenizer_json(tmp_path):
    directory = tiny_checkpoints.save(tmp_path, "byte_level", "qwen2", {"tokenizer_class": "Qwen2Tokenizer"})
    tiny_checkpoints.byte_level().model.save(str(directory))
    (directory / "tokenizer.json").unlink()
    tokenizer = load_tokenizer(directory)
    assert isinstance(tokenizer, TransformersTokenizer)
    assert_equal_to_transformers(tokenizer, directory)


@pytest.mark.parametrize("kind", ["byte_level", "metaspace_bpe"])
def test_settings_baked_into_the_file_do_not_cut_or_pad(kind, tmp_path):
    directory = tiny_checkpoints.save(tmp_path, kind)
    from tokenizers import Tokenizer

    baked = Tokenizer.from_file(str(directory / "tokenizer.json"))
    baked.enable_truncation(5, direction="left")
    baked.enable_padding(length=32, pad_token="<extra>", pad_id=3)
    baked.save(str(directory / "tokenizer.json"))
    assert_equal_to_transformers(load_tokenizer(directory), directory)


def test_no_tokenizer_config_at_all(tmp_path):
    directory = tiny_checkpoints.save(tmp_path, "metaspace_bpe")
    (directory / "tokenizer_config.json").unlink()
    assert_equal_to_transformers(load_tokenizer(directory), directory)


def test_real_checkpoint(real_checkpoint):
    tokenizer = load_tokenizer(real_checkpoint)
    assert isinstance(tokenizer, CheckpointTokenizer)
    assert_equal_to_transformers(tokenizer, real_checkpoint)


def test_class_registry_is_that_of_transformers():
    from layerpress_data.tokenizer_class import REGISTERED_CLASSES
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    theirs = {name: TOKENIZER_MAPPING_NAMES.get(name) for name in REGISTERED_CLASSES}
    # With mistral-common installed transformers registers its class, which needs a tekken.json to be taken.
    theirs = {name: "TokenizersBackend" if kind == "MistralCommonBackend" else kind for name, kind in theirs.items()}
    assert theirs == REGISTERED_CLASSES


def test_hub_cache_folder_gives_the_id(tmp_path):
    from layerpress_data.tokenizer_class import BACKEND, known_class

    snapshot = tmp_path / "models--deepseek-ai--DeepSeek-R1-Distill-Llama-8B" / "snapshots" / "0a1b"
    settings = {"tokenizer_class": "LlamaTokenizerFast"}
    assert known_class(snapshot, {"model_type": "llama"}, settings) == BACKEND
    assert known_class(tmp_path, {"model_type": "llama"}, settings) == "LlamaTokenizer"


@pytest.mark.parametrize("package, module", [("sentencepiece", "sentencepiece"), ("protobuf", "google.protobuf")])
def test_readers_of_sentencepiece_models_are_named(package, module, tmp_path, monkeypatch):
    """transformers itself speaks of tiktoken then."""
    (tmp_path / "tokenizer.model").write_bytes(b"no model")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "LlamaTokenizer"}')
    monkeypatch.setitem(sys.modules, "sentencepiece", None if module == "sentencepiece" else types.ModuleType("sentencepiece"))
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=f"pip install {package}"):
        TransformersTokenizer(tmp_path)
