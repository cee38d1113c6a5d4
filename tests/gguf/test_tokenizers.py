"""Token ids by llama.cpp, from the keys that we write, against those of the tokenizers library."""

import json

import pytest
from support import gguf_facts, gguf_files, llama, program, tiny_checkpoints
from support.token_texts import texts
from tokenizers import Tokenizer

SMOLLM2 = program.REPOSITORY / ".cache" / "models" / "SmolLM2-135M-Instruct"
CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
PATHS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+""" r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+"]
DIGITS = {"type": "Digits", "individual_digits": True}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
GPT2 = {**BYTES, "use_regex": True}


def splits(*expressions):
    return [{"type": "Split", "pattern": {"Regex": text}, "behavior": "Isolated", "invert": False} for text in expressions]


# llama.cpp's name: how text is cut, and whether words of the vocabulary are taken whole
WAYS = {
    "llama-bpe": ([*splits(LLAMA3), BYTES], True),
    "dbrx": ([*splits(LLAMA3), BYTES], False),
    "qwen2": ([*splits(LLAMA3.replace("{1,3}", "")), BYTES], False),
    "qwen35": ([*splits(QWEN35), BYTES], False),
    "smollm": ([DIGITS, GPT2], False),
    "gpt-2": ([GPT2], False),
    "gpt-4o": ([*splits(f"{LOWER}{CONTRACTIONS}?|{UPPER}{CONTRACTIONS}?" + r"|\p{N}{1,3}" + PATHS), BYTES], False),
    "tekken": ([*splits(f"{LOWER}|{UPPER}" + r"|\p{N}" + PATHS), BYTES], True),
    "deepseek-v3": ([*splits(*DEEPSEEK), BYTES], False),
    "deepseek-coder": ([*splits("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+"), DIGITS, BYTES], False),
}

def byte_level(way):
    """A trained tokenizer that cuts text in one of the ways."""
    document = json.loads(tiny_checkpoints.byte_level().to_str())
    steps, ignores_merges = WAYS[way]
    document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    document["post_processor"] = None
    document["model"]["ignore_merges"] = ignores_merges
    return document


def byte_fallback():
    """A trained tokenizer in the manner of Llama 2, with a merge for every two tokens that make a third, as SentencePiece has them."""
    document = json.loads(tiny_checkpoints.metaspace_bpe().to_str())
    vocab, ranks = document["model"]["vocab"], {}
    for rank, merge in enumerate(document["model"]["merges"]):
        ranks.setdefault("".join(merge if isinstance(merge, list) else merge.split(" ")), rank)
    pairs = [(rank, [token[:cut], token[cut:]]) for token, rank in ranks.items() for cut in range(1, len(token))
             if token[:cut] in vocab and token[cut:] in vocab]
    document["model"]["merges"] = [pair for _, pair in sorted(pairs, key=lambda item: item[0])]
    return document


def write_model(folder, document):
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"} if "<s>" in document["model"]["vocab"] else {}))
    return folder


def compare(folder, tmp_path, samples):
    """The samples whose ids differ; also checks the ids with the tokens that begin and end texts."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    metadata = gguf_facts.said("tokenizer", folder, tokenizer.get_vocab_size())
    file = gguf_files.write(tmp_path / "vocabulary.gguf", "llama", metadata)
    found = llama.ids(file, samples)
    return metadata, [text for text, (plain, around) in zip(samples, found, strict=True)
                      if plain != tokenizer.encode(text, add_special_tokens=False).ids or around != tokenizer.encode(text).ids]


@pytest.mark.parametrize("way", WAYS)
def test_ways_to_cut_text_are_known(way, tmp_path):
    metadata = gguf_facts.said("tokenizer", write_model(tmp_path, byte_level(way)), 800)
    values = gguf_facts.values(metadata)
    assert values["tokenizer.ggml.pre"] == way
    assert len(values["tokenizer.ggml.tokens"]) == 800


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_ids_of_byte_level_tokenizers(way, tmp_path):
    _, different = compare(write_model(tmp_path, byte_level(way)), tmp_path, texts())
    assert not different


@llama.needs_llama
@pytest.mark.nightly
def test_ids_of_byte_fallback_tokenizers(tmp_path):
    metadata, different = compare(write_model(tmp_path, byte_fallback()), tmp_path, texts(normal=False))
    assert gguf_facts.values(metadata)["tokenizer.ggml.model"] == "llama"
    assert not different


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.skipif(not SMOLLM2.exists(), reason="examples/demo/fetch_model.py gets the model")
def test_ids_of_a_real_tokenizer(tmp_path):
    _, different = compare(SMOLLM2, tmp_path, texts(normal=False))
    assert not different
