"""Tokenizers of classes that, as in transformers 5, keep a file's vocabulary and merges and rebuild everything else."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

_END_OF_TEXT = "<|endoftext|>"
_DEFAULT_TOKENS: dict[str, dict[str, Optional[str]]] = {
    "LlamaTokenizer": {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"},
    "Qwen2Tokenizer": {"unk_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT, "pad_token": _END_OF_TEXT},
    "GPT2Tokenizer": {"unk_token": _END_OF_TEXT, "bos_token": _END_OF_TEXT, "eos_token": _END_OF_TEXT},
}
# Qwen's published splitting rule: contractions, words, single digits, punctuation, line breaks, spaces.
_QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def default_tokens(class_name: str) -> dict[str, Optional[str]]:
    """The special tokens that a class sets if the checkpoint names none."""
    return _DEFAULT_TOKENS.get(class_name, {})


def rebuild(class_name: str, loaded: Tokenizer, settings: Mapping[str, Any]) -> Optional[Tokenizer]:
    """Returns a tokenizer with `loaded`'s model and without added tokens; None if that model is of another kind."""
    model = loaded.model
    if type(model).__name__ != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    model.dropout = None
    model.unk_token = None
    model.ignore_merges = False
    model.byte_fallback = model.fuse_unk = class_name == "LlamaTokenizer"
    rebuilt = Tokenizer(model)
    if class_name == "LlamaTokenizer":
        rebuilt.pre_tokenizer = _llama_splitting(settings)
    elif class_name == "Qwen2Tokenizer":
        rebuilt.normalizer = normalizers.NFC()
        rebuilt.pre_tokenizer = _qwen_splitting(settings)
    else:
        prefix_space = bool(settings.get("add_prefix_space", False))
        rebuilt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    if loaded.post_processor is not None:
        rebuilt.post_processor = loaded.post_processor
    return rebuilt


def _llama_splitting(settings: Mapping[str, Any]) -> pre_tokenizers.PreTokenizer:
    prefix_space = settings.get("add_prefix_space")
    if prefix_space is not None and not prefix_space:
        scheme = "never"
    else:
        scheme = "always" if settings.get("legacy", False) else "first"
    return pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme=scheme, split=False)


def _qwen_splitting(settings: Mapping[str, Any]) -> pre_tokenizers.PreTokenizer:
    prefix_space = bool(settings.get("add_prefix_space") or False)
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False),
        ]
    )
