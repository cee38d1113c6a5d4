"""Llama-3.2-Vision: logits against transformers, samples of a packed batch against one by one."""

import json

import numpy
import pytest
import torch
from safetensors.numpy import load_file
from support import program, tiny_mllama, tiny_models, tiny_vision
from support.tiny_mllama import Sample

CASES = {
    "no image": [Sample(11), Sample(3)],
    "one image of one tile": [Sample(11, [1])],
    "one image of all tiles": [Sample(9, [6])],
    "tokens before the image": [Sample(12, [2], [5])],
    "several images": [Sample(14, [1, 7, 4], [2, 6, 9])],
    "images of equal tokens": [Sample(10, [2, 3], [4, 4])],
    "an image that no token attends to": [Sample(8, [2], [8])],
    "mixed": [Sample(7), Sample(11, [5], [3]), Sample(1), Sample(13, [8, 1], [0, 7]), Sample(5)],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_mllama.save(tmp_path_factory.mktemp("mllama") / "model")


def difference(folder, samples, tmp_path):
    ours, theirs = tiny_mllama.our_logits(folder, samples, tmp_path), tiny_mllama.their_logits(folder, samples)
    assert [mine.shape for mine in ours] == [wanted.shape for wanted in theirs]
    assert min(wanted.std() for wanted in theirs) > 0.5
    return max(numpy.abs(mine - wanted).max() for mine, wanted in zip(ours, theirs))


@pytest.mark.parametrize("case", CASES)
def test_fp32(case, model, tmp_path):
    assert difference(model, CASES[case], tmp_path) < 1e-4


@pytest.mark.parametrize("settings", [
    {"vision": {"image_size": 30}},  # a margin that fills no patch
    {"vision": {"image_size": 56, "patch_size": 28}},
    {"vision": {"hidden_act": "silu", "norm_eps": 0.1}},
    {"vision": {"intermediate_layers_indices": [2, 0, 2], "vision_output_dim": 128}},
    {"vision": {"intermediate_layers_indices": [1], "vision_output_dim": 64, "num_global_layers": 1}},
    {"text": {"cross_attention_layers": [0, 4], "num_key_value_heads": 4}},
    {"text": {"cross_attention_layers": [], "rope_parameters": {
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}},
], ids=str)
def test_settings(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_mllama, "IMAGE_SIZE", settings.get("vision", {}).get("image_size", 28))
    folder = tiny_mllama.save(tmp_path / "model", **settings)
    assert difference(folder, [Sample(9, [5], [2]), Sample(6), Sample(12, [1, 8], [3, 5])], tmp_path) < 1e-4


def test_bf16(tmp_path):
    """In bf16 both programs round; ours must be no further from the same weights in fp32 than transformers is."""
    folder = tiny_mllama.save(tmp_path / "model", torch.bfloat16)
    samples = CASES["mixed"]
    exact = numpy.concatenate(tiny_mllama.their_logits(folder, samples))
    theirs = numpy.concatenate(tiny_mllama.their_logits(folder, samples, torch.bfloat16))
    ours = numpy.concatenate(tiny_mllama.our_logits(folder, samples, tmp_path, "bfloat16"))
    error_of = lambda logits: numpy.sqrt(numpy.mean((logits - exact) ** 2))
    assert 0 < error_of(ours) < 1.25 * error_of(theirs)


def test_images_matter(model, tmp_path):
    """Tests above could not fail if images changed nothing."""
    with_image = tiny_mllama.our_logits(model, [Sample(9, [2], seed=1)], tmp_path)[0]
    other = Sample(9, [2], seed=1)
    other.pixels[0][1] += 1
    assert numpy.abs(tiny_mllama.our_logits(model, [other], tmp_path)[0] - with_image).max() > 0.1


def test_neighbours_do_not_matter(model, tmp_path):
    """A sample without images does not notice those of others, and the other way around, to rounding."""
    alone = [tiny_mllama.our_logits(model, [sample], tmp_path)[0] for sample in CASES["mixed"]]
    packed = tiny_mllama.our_logits(model, CASES["mixed"], tmp_path)
    assert max(numpy.abs(a - b).max() for a, b in zip(alone, packed)) < 1e-5


def test_defaults_of_missing_keys(tmp_path):
    """What config.json leaves out is as the class has it."""
    folder = tiny_mllama.save(tmp_path / "model")

    def leave_out(config):
        for key in ("norm_eps", "max_num_tiles", "supported_aspect_ratios", "hidden_act", "num_channels"):
            config["vision_config"].pop(key)
        for key in ("rms_norm_eps", "rope_parameters", "hidden_act", "tie_word_embeddings"):
            config["text_config"].pop(key)

    tiny_models.rewrite_config(folder, leave_out)
    assert difference(folder, CASES["mixed"], tmp_path) < 1e-4


@pytest.mark.parametrize("change, fragments", [
    (lambda c: c["text_config"].update(cross_attention_layers=[1]), ["layers.3.self_attn", "missing"]),
    (lambda c: c["text_config"].update(cross_attention_layers=[1, 5]), ["cross_attention_layers", "5"]),
    (lambda c: c["vision_config"].update(vision_output_dim=64), ["vision_output_dim", "96"]),
    (lambda c: c["vision_config"].update(intermediate_layers_indices=[0, 3]), ["intermediate_layers_indices", "3"]),
    (lambda c: c["vision_config"].update(patch_size=14), ["vision_model", "[32, 3, 7, 7]", "[32, 3, 14, 14]"]),
    (lambda c: c["vision_config"].update(attention_heads=5), ["hidden_size"]),
    (lambda c: c.update(vision_config=7), ["vision_config"]),
])
def test_config_that_contradicts_the_tensors(change, fragments, tmp_path):
    folder = tiny_mllama.save(tmp_path / "model")
    tiny_models.rewrite_config(folder, change)
    program.fails("inspect", folder, fragments=fragments)


@pytest.mark.parametrize("spoil, fragments", [
    (lambda s: s.pixels.__setitem__(0, s.pixels[0][:, :, :14]), ["sample 2", "14"]),
    (lambda s: s.ratios.__setitem__(0, 9), ["sample 2", "aspect ratio id 9"]),
    (lambda s: s.mask.fill(1), ["sample 2", "cross_attention_mask"]),
    (lambda s: s.mask.fill(2), ["sample 2", "cross_attention_mask"]),
], ids=["size", "ratio", "absent tile", "no bits"])
def test_images_that_the_model_does_not_take(spoil, fragments, model, tmp_path):
    samples = [Sample(5), Sample(6, [2])]
    spoil(samples[1])
    tokens = tiny_mllama.write_token_file(tmp_path / "tokens.safetensors", samples)
    program.fails(model, tokens, tmp_path / "out.safetensors", fragments=fragments, program=program.PRINT_LOGITS)


def test_model_without_images_refuses_them(tmp_path):
    folder = tiny_models.save(tmp_path / "model")
    tokens = tiny_mllama.write_token_file(tmp_path / "tokens.safetensors", [Sample(5), Sample(6, [2])])
    program.fails(folder, tokens, tmp_path / "out.safetensors", fragments=["sample 2", "takes none"],
                  program=program.PRINT_LOGITS)


def test_prepared_images(tmp_path):
    """From image files to logits: what `layerpress prepare` stores gives what the processor and the model give."""
    pytest.importorskip("PIL", reason="images need the package pillow")
    from PIL import Image
    from transformers import AutoProcessor

    folder = tiny_vision.save_vision(tiny_mllama.save(tmp_path / "model"))
    tiny_vision.save_image(tmp_path / "wide.png", 90, 25)
    tiny_vision.save_image(tmp_path / "small.png", 20, 20, seed=1)
    rows = [("w1 <|image|> w2 w3", ["wide.png"]), ("w4 w5", []), ("<|image|> w6 <|image|> w7", ["small.png", "wide.png"])]
    dataset = tmp_path / "rows.jsonl"
    dataset.write_text("".join(json.dumps({"text": text, "images": images}) + "\n" for text, images in rows))
    tokens, written = tmp_path / "tokens.safetensors", tmp_path / "logits.safetensors"
    program.run("prepare", folder, "--dataset", dataset, "--output", tokens)
    program.run(folder, tokens, written, "--dtype", "float32", program=program.PRINT_LOGITS)
    ours = load_file(written)["logits"]

    processor = AutoProcessor.from_pretrained(folder, local_files_only=True)
    model = tiny_mllama.load(folder)
    theirs = []
    for text, images in rows:
        opened = [Image.open(tmp_path / image) for image in images]
        with torch.no_grad():
            # Text alone is the tokenizer's: the processor would begin it twice.
            given = processor(images=opened, text=text, return_tensors="pt") if images else processor.tokenizer(
                text, return_tensors="pt")
            theirs.append(model(**given, use_cache=False).logits[0].numpy())
    assert numpy.abs(ours - numpy.concatenate(theirs)).max() < 1e-4
    # Prepared with fewer tokens a sample, the token file is cut when it is read; so are its masks.
    shorter = tmp_path / "shorter.safetensors"
    program.run("prepare", folder, "--dataset", tokens, "--output", shorter, "--max-seq-length", "4")
    cut, whole = load_file(shorter), load_file(tokens)
    assert cut["sample_offsets"].tolist() == [0, 4, 7, 11] and len(cut["cross_attention_mask"]) == 4 + 2 * 4
    assert numpy.array_equal(cut["cross_attention_mask"][:4], whole["cross_attention_mask"][:4])
    assert all(numpy.array_equal(cut[name], whole[name]) for name in whole if name.startswith(("pixel", "aspect")))
