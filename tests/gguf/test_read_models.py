"""GGUF files as models: every family that can be written is read back to the same config and tensors."""


import gguf
import numpy as np
import pytest
from support import gguf_facts, gguf_files, gguf_models, program, tiny_models
from support.selection import nightly_but
from support.token_texts import texts
from test_tokenizers import WAYS, byte_fallback, byte_level, write_model
from tokenizers import Tokenizer

# Families whose graphs PyTorch exports, which takes long.
EXPORTED = ("olmo3", "lfm2", "glm4", "gpt-oss", "qwen3 next", "qwen3 next, every other layer", "qwen3.5",
            "qwen3.5, as many values as keys", "qwen3.5 moe")
QUICK = [name for name in gguf_models.MODELS if name not in EXPORTED]


def compare_logits(model, tmp_path, added=None, **changes):
    """`added`: to config.json alone."""
    family, settings = gguf_models.MODELS[model]
    settings = {**settings, **changes}
    folder = tiny_models.save(tmp_path / "model", family, **settings)
    tiny_models.rewrite_config(folder, lambda config: config.update(added or {}))
    file = gguf_models.write(folder, tmp_path / "model.gguf")
    samples = tiny_models.random_samples([24, 5])
    expected, found = program.logits(folder, samples, tmp_path), program.logits(file, samples, tmp_path)
    assert min(np.abs(logits).max() for logits in expected) > 0.2
    assert max(np.abs(a - b).max() for a, b in zip(expected, found, strict=True)) < 1e-5


@pytest.mark.parametrize("model", QUICK)
def test_logits_of_built_in_families(model, tmp_path):
    compare_logits(model, tmp_path)


@pytest.mark.parametrize("model", nightly_but(EXPORTED, "glm4"))
def test_logits_of_exported_families(model, tmp_path):
    compare_logits(model, tmp_path)


@pytest.mark.parametrize("model", ["llama", "gemma3"])
def test_rope_scaling_beside_rope_parameters(model, tmp_path):
    compare_logits(model, tmp_path, {"rope_scaling": {"rope_type": "linear", "factor": 4.0}})


@pytest.mark.nightly
@pytest.mark.parametrize("rounded", [{"truncate": False}, {"truncate": True}, {}])
def test_the_usual_rope_of_gpt_oss(rounded, tmp_path):
    """Yarn, whose range of frequencies is usually not rounded to whole features; no key of llama.cpp's says that."""
    compare_logits("gpt-oss", tmp_path, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096, **rounded})


@pytest.mark.nightly
def test_llama3_positions_with_one_frequency_on_the_ramp(tmp_path):
    """Many scalings have its factors; any of them will do."""
    compare_logits("llama", tmp_path, head_dim=16, rope_parameters={
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32})


def ids_after_reading(folder, tmp_path):
    """For each text, the ids of the tokenizer and of what becomes of it in a file and back, without and with tokens around."""
    before = Tokenizer.from_file(str(folder / "tokenizer.json"))
    metadata = gguf_facts.said("tokenizer", folder, before.get_vocab_size())
    files = gguf_facts.said("files", gguf_files.write(tmp_path / "vocabulary.gguf", "llama", metadata))
    after = Tokenizer.from_str(files["tokenizer.json"])
    for text in texts():
        for around in (False, True):
            yield text, before.encode(text, add_special_tokens=around).ids, after.encode(text, add_special_tokens=around).ids


@pytest.mark.parametrize("way", WAYS)
def test_ids_of_byte_level_tokenizers(way, tmp_path):
    assert not [text for text, before, after in ids_after_reading(write_model(tmp_path, byte_level(way)), tmp_path) if before != after]


def test_ids_of_byte_fallback_tokenizers(tmp_path):
    document = byte_fallback()
    document["post_processor"] = None
    folder = write_model(tmp_path, document)
    (folder / "tokenizer_config.json").write_text("{}")
    assert not [text for text, before, after in ids_after_reading(folder, tmp_path) if before != after]


def llama(tmp_path, **changes):
    """A Llama as a GGUF, with some keys changed."""
    folder = tiny_models.save(tmp_path / "model")
    file = gguf_models.write(folder, tmp_path / "whole.gguf")
    reader = gguf.GGUFReader(file)
    kinds = {kind: name for name, kind in gguf_files.TYPES.items()}
    metadata = [[key, [kinds[field.types[0]], field.contents()]] for key, field in reader.fields.items()
                if not key.startswith("GGUF.") and key not in changes]
    metadata += [[key, value] for key, value in changes.items() if value]
    architecture = changes.get("general.architecture", ["string", "llama"])[1]
    return gguf_files.write(tmp_path / "model.gguf", architecture, metadata, [(tensor.name, tensor.data) for tensor in reader.tensors])


@pytest.mark.parametrize("changes, fragments", [
    ({"general.architecture": ["string", "lama"]}, ["'lama'", "did you mean llama"]),
    ({"llama.block_count": None}, ["llama.block_count"]),
    ({"llama.block_count": ["u32", 1]}, ["blk.1."]),
    ({"llama.attention.head_count": ["u32", 0]}, ["metadata, as config.json", "num_attention_heads", "model.gguf"]),
    ({"llama.attention.head_count": ["u32", 1 << 20]}, ["shape"]),
    ({"llama.rope.dimension_count": ["u32", 8]}, ["llama.rope.dimension_count"]),
    ({"llama.attention.clamp_kqv": ["f32", 8.0]}, ["llama.attention.clamp_kqv", "8.0"]),
    ({"llama.rope.scaling.type": ["string", "longrope"]}, ["longrope"]),
    ({"llama.rope.scaling.type": ["string", "ntk"]}, ["rope.scaling.type", '"ntk"']),
    ({"split.count": ["u32", 2]}, ["split.count", "u16"]),
    ({"split.count": ["u16", 2]}, ["-00001-of-00002.gguf"]),
    ({"split.count": ["u16", 2], "split.no": ["u16", 1]}, ["name the first one"]),
    ({"general.type": ["string", "imatrix"]}, ["imatrix"]),
])
def test_refusals_name_what_is_wrong(changes, fragments, tmp_path):
    program.fails("inspect", llama(tmp_path, **changes), fragments=fragments)


def test_inspect_and_a_tokenizer_that_is_not_known(tmp_path):
    outcome = program.run("inspect", llama(tmp_path), "--json")
    facts = outcome.json()
    assert facts["architecture"] == "LlamaForCausalLM" and facts["quantization"] == "GGUF, mostly F32"
    assert "tokenizer.ggml.model 'none'" in outcome.errors
    (tmp_path / "texts.jsonl").write_text('{"text": "words"}\n')
    program.fails("eval", tmp_path / "model.gguf", "--dataset", tmp_path / "texts.jsonl",
                  fragments=["[data.prepare]", "texts.jsonl", "no tokenizer that can be used", "layerpress prepare"])
