"""Tokenizers of every kind, trained here on a few sentences and saved as checkpoints are."""

import json
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CORPUS = [
    "The boot loader lives in the master boot record, and it may vanish when another system is installed.",
    "Don't panic: we'll reinstall it from the rescue medium, as they've done 1024 times before!",
    "def main(args):\n    for i in range(10):\n\tprint(i ** 2)  # squares\n\n\nmain([])",
    "Zürich, naïve façade, Ελλάδα, Москва, 東京 and 😀 are written in UTF-8; e\u0301 is two code points.",
    "Prices rose by 3.5% in 2023, i.e. from $10,000 to $10,350 (see table 7).",
] * 3

TEXTS = [
    "Hello world, the boot loader isn't here!",
    "  leading and   inner spaces, trailing  ",
    "Lines\n\nand\ttabs\r\n\r\nend\n",
    "Zürich e\u0301 東京 😀 ünseen ﬁ ½ Ａ",
    "numbers 123456 3.14 x2 1,000",
    "<s>literal</s> <|endoftext|> <unk> <|im_start|>user [CLS] [SEP] <extra>",
    "a",
    " ",
    "<|im_end|> <|im_end|>\n<image> x<image>y",
    "The master boot record " * 40,
]

QWEN_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level(specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
    """GPT-2's kind."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train_bpe(tokenizer, specials, pre_tokenizers.ByteLevel.alphabet())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def byte_level_split(specials=("<|endoftext|>", "<|im_start|>", "<|im_end|>")):
    """Qwen2's kind: NFC, a splitting pattern, bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    _train_bpe(tokenizer, specials, pre_tokenizers.ByteLevel.alphabet())
    return tokenizer


def byte_level_bos():
    """Llama 3's kind: as above, a first token on every text, whole words of the vocabulary taken as they are."""
    tokenizer = byte_level_split(("<|begin_of_text|>", "<|eot_id|>"))
    # Some words of the vocabulary cannot be reached by merges, as in the real one.
    document = json.loads(tokenizer.to_str())
    document["normalizer"] = None
    document["model"].update(ignore_merges=True, merges=document["model"]["merges"][:60])
    tokenizer = Tokenizer.from_str(json.dumps(document))
    bos = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(f"{bos[0]} $A", special_tokens=[bos])]
    )
    return tokenizer


def metaspace_bpe():
    """Llama 2's kind: sentencepiece BPE with byte fallback, its spaces written by the normalizer."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    byte_tokens = [f"<0x{value:02X}>" for value in range(256)]
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    _train_bpe(tokenizer, ["<unk>", "<s>", "</s>"], [], byte_tokens)
    tokenizer = _without_pre_tokenizer(tokenizer, added=("<unk>", "<s>", "</s>"))
    bos = ("<s>", tokenizer.token_to_id("<s>"))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", pair="<s> $A <s> $B", special_tokens=[bos])
    return tokenizer


def unigram():
    """sentencepiece's other kind, a last token on every text."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    eos = ("</s>", tokenizer.token_to_id("</s>"))
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[eos])
    return tokenizer


def wordpiece():
    """BERT's kind, tokens at both ends of a text."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


KINDS = {
    "byte_level": (byte_level, {"eos_token": "<|endoftext|>", "bos_token": "<|im_start|>"}),
    "byte_level_split": (byte_level_split, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}),
    "byte_level_bos": (byte_level_bos, {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}),
    "metaspace_bpe": (metaspace_bpe, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "unigram": (unigram, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
    "wordpiece": (wordpiece, {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}),
}


def save(directory: Path, kind: str, model_type="llama", settings=None, files=None) -> Path:
    """Saves a tokenizer of this kind through transformers; `settings` change tokenizer_config.json (None removes)."""
    from transformers import PreTrainedTokenizerFast

    build, special_tokens = KINDS[kind]
    PreTrainedTokenizerFast(tokenizer_object=build(), **special_tokens).save_pretrained(directory)
    path = directory / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), **(settings or {})}
    path.write_text(json.dumps({name: value for name, value in config.items() if value is not None}))
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    for name, content in (files or {}).items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return directory


def save_words(directory: Path) -> Path:
    """Saves a tokenizer that knows the words w1 to w99 as tokens 1 to 99, and no special tokens."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, **{f"w{i}": i for i in range(1, 100)}}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}))
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


def _train_bpe(tokenizer, specials, alphabet, first_tokens=()):
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[AddedToken(token, special=True) for token in (*specials, *first_tokens)],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)


def _without_pre_tokenizer(tokenizer, added):
    """The same tokenizer with fewer added tokens and no splitting, which the library cannot remove in place."""
    document = json.loads(tokenizer.to_str())
    document["pre_tokenizer"] = None
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] in added]
    return Tokenizer.from_str(json.dumps(document))
