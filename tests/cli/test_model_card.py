"""README.md of an output: the hub's metadata, what was done, and how to serve it."""

import pytest
from huggingface_hub import ModelCard
from support import program, tiny_models

SAMPLES = tiny_models.random_samples([40, 20, 31])


def compress(model, folder, *options):
    dataset = program.write_samples(folder / "samples.jsonl", SAMPLES)
    outcome = program.run("oneshot", model, "--output", folder / "out", "--dataset", dataset, *options)
    assert outcome.code == 0
    return ModelCard.load(folder / "out" / "README.md"), outcome


def test_card(tmp_path):
    model = tiny_models.save(tmp_path / "tiny-llama")
    (model / "README.md").write_text("---\nlicense: apache-2.0\nlanguage: [en, 'no']\nbase_model: other/one\ntags: [chat]\n---\n# Tiny\n")
    (model / "LICENSE").write_text("terms")
    card, _ = compress(model, tmp_path, "--scheme", "W4A16", "--group-size", "32")
    assert card.data.to_dict() == {
        "base_model": "tiny-llama", "base_model_relation": "quantized", "library_name": "transformers",
        "license": "apache-2.0", "language": ["en", "no"], "tags": ["compressed-tensors", "layerpress"]}
    assert (tmp_path / "out" / "LICENSE").read_text() == "terms"
    assert "vllm serve ." in card.text and (tmp_path / "out" / "recipe.yaml").read_text() in card.text
    assert "4-bit int, group 32: 14 modules" in card.text and "3 samples, 91 tokens |" in card.text
    assert str(tmp_path) not in card.content and "Tiny" not in card.content


def test_model_of_the_hub(tmp_path, monkeypatch):
    folder = tmp_path / "hub" / "models--some--tiny-llama"
    tiny_models.save(folder / "snapshots" / "0123")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "by-id").mkdir(), (tmp_path / "by-folder").mkdir()
    for model, place in (("some/tiny-llama", "by-id"), (folder / "snapshots" / "0123", "by-folder")):
        card, _ = compress(model, tmp_path / place, "--algorithm", "rtn", "--group-size", "32")
        assert card.data.base_model == "some/tiny-llama"
        assert "license" not in card.data.to_dict() and "calibration" not in card.text


@pytest.mark.parametrize("text", ["no front matter", "---\nlicense: mit\n", "---\n[: }\n---\n", "---\n- license\n---\n", "\xff---"])
def test_unreadable_original_card(text, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    (model / "README.md").write_bytes(text.encode("latin-1"))
    card, _ = compress(model, tmp_path, "--algorithm", "rtn", "--group-size", "32")
    assert card.data.base_model == "model" and "license" not in card.data.to_dict()
