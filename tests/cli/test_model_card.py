"""README.md of an output: the hub's metadata, what was done, and how to serve it."""

import shlex

import pytest
import torch
from huggingface_hub import ModelCard
from support import program, tiny_checkpoints, tiny_models

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
        "library_name": "transformers", "license": "apache-2.0", "language": ["en", "no"], "tags": ["compressed-tensors", "layerpress"]}
    assert (tmp_path / "out" / "LICENSE").read_text() == "terms"
    assert "vllm serve ." in card.text and (tmp_path / "out" / "recipe.yaml").read_text() in card.text
    assert "4-bit int, group 32: 14 modules" in card.text and "3 samples, 91 tokens |" in card.text
    assert str(tmp_path) not in card.content and "Tiny" not in card.content
    before, after = (sum(tensor.nbytes for tensor in tiny_models.tensors(folder).values()) for folder in (model, tmp_path / "out"))
    assert f"({before / after:.2f} times smaller)" in card.text and "It needs an NVIDIA GPU of the Ampere generation or later" in card.text
    assert "    layerpress oneshot tiny-llama --output OUT --dataset DATA --scheme W4A16 --group-size 32 " in card.text
    assert "--seed 0" in card.text and "--overwrite" not in card.text


def test_name_of_a_folder_that_is_markup(tmp_path):
    model = tiny_models.save(tmp_path / "a<b>|c\nd")
    card, _ = compress(model, tmp_path, "--scheme", "W8A8")
    assert card.text.lstrip().startswith("# a&lt;b>\\|c d, compressed\n") and "| base model | a&lt;b>\\|c d |\n" in card.text


def test_card_of_a_run_that_quantizes_nothing(tmp_path):
    """No row is empty, and what grows or stays is not called smaller."""
    model = tiny_models.save(tmp_path / "tiny-llama")
    recipe = tmp_path / "smooth.yaml"
    recipe.write_text("a_stage:\n  a_modifiers:\n    SmoothQuantModifier: {smoothing_strength: 0.5}\n")
    card, outcome = compress(model, tmp_path, "--recipe", recipe)
    assert "|  |\n" not in card.text.replace("| | |\n|---|---|\n", "") and "(the same size)" in card.text and "(the same size)" in outcome.output


def test_model_of_the_hub(tmp_path, monkeypatch):
    folder = tmp_path / "hub" / "models--some--tiny-llama"
    tiny_models.save(folder / "snapshots" / "0123")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "by-id").mkdir(), (tmp_path / "by-folder").mkdir()
    for model, place in (("some/tiny-llama", "by-id"), (folder / "snapshots" / "0123", "by-folder")):
        card, _ = compress(model, tmp_path / place, "--algorithm", "rtn", "--group-size", "32")
        assert card.data.base_model == "some/tiny-llama" and card.data.base_model_relation == "quantized"
        assert "layerpress oneshot some/tiny-llama " in card.text and "| some/tiny-llama, commit 0123 |" in card.text
        assert "layerpress eval . --reference some/tiny-llama" in card.text
        assert "license" not in card.data.to_dict() and "| calibration" not in card.text


@pytest.mark.parametrize("text", ["no front matter", "---\nlicense: mit\n", "---\n[: }\n---\n", "---\n- license\n---\n", "\xff---"])
def test_unreadable_original_card(text, tmp_path):
    model = tiny_models.save(tmp_path / "model")
    (model / "README.md").write_bytes(text.encode("latin-1"))
    card, _ = compress(model, tmp_path, "--algorithm", "rtn", "--group-size", "32")
    assert card.data.base_model is None and "license" not in card.data.to_dict()


def test_the_call_in_the_card_gives_the_same_weights(tmp_path):
    """With a recipe, which is the one in the folder."""
    model = tiny_models.save(tmp_path / "tiny-llama")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("a_stage:\n  a_modifiers:\n    GPTQModifier: {scheme: W8A8, targets: ['re:.*down_proj', 're:.*o_proj']}\n")
    card, _ = compress(model, tmp_path, "--recipe", recipe, "--max-seq-length", "30", "--threads", "1")
    [call] = [line.strip() for line in card.text.splitlines() if line.startswith("    layerpress oneshot")]
    words = shlex.split(call)
    assert "mine.yaml" not in call and "--threads" not in words
    again = [{"OUT": tmp_path / "again", "DATA": tmp_path / "samples.jsonl", "tiny-llama": model,
              "recipe.yaml": tmp_path / "out" / "recipe.yaml"}.get(word, word) for word in words[2:]]
    assert program.run("oneshot", *again, "--threads", "1").code == 0
    first, second = tiny_models.tensors(tmp_path / "out"), tiny_models.tensors(tmp_path / "again")
    assert first.keys() == second.keys() and all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_measured_quality(tmp_path):
    """Only where it is asked for, and only in its place."""
    model = tiny_models.save(tmp_path / "tiny-llama")
    compress(model, tmp_path, "--algorithm", "rtn", "--group-size", "32")
    file, data = tmp_path / "out" / "README.md", tmp_path / "samples.jsonl"
    before = file.read_text()
    assert "Not measured yet." in before
    measure = ("eval", tmp_path / "out", "--dataset", data, "--reference", model)
    assert "warning: [options]" not in program.run(*measure).errors
    other = tiny_models.save(tmp_path / "other", seed=7)
    assert f"{other} stores other weights than the model that {tmp_path / 'out'} was made of" in program.run(*measure[:-1], other).errors
    assert file.read_text() == before
    for _ in range(2):
        figures = program.run(*measure, "--card").json()
        text = file.read_text()
        assert "Not measured yet." not in text and f"| perplexity | {figures['perplexity']:.4g} |" in text
        assert f"| KL divergence from the original | {figures['kl_divergence']:.4g} |" in text and str(tmp_path) not in text
        assert f"{figures['kl_percentile_99']:.4g}, {figures['worst_tokens'][0]['kl_divergence']:.4g} |" in text
        for part in (before.partition("<!-- quality")[0], before.partition("<!-- end of quality -->")[2]):
            assert part in text
    card = ModelCard.load(file)
    assert card.data.library_name == "transformers"


def test_folders_without_our_card(tmp_path):
    model = tiny_models.save(tmp_path / "tiny-llama")
    data = program.write_samples(tmp_path / "samples.jsonl", SAMPLES)
    (model / "README.md").write_text("# Mine")
    program.fails("eval", model, "--dataset", data, "--card", fragments=["[options] --card", "README.md is not a model card"], code=2)
    assert (model / "README.md").read_text() == "# Mine"
    compress(model, tmp_path, "--algorithm", "rtn", "--group-size", "32")
    card = tmp_path / "out" / "README.md"
    card.rename(tmp_path / "elsewhere.md")
    card.symlink_to(tmp_path / "elsewhere.md")
    program.fails("eval", tmp_path / "out", "--dataset", data, "--card", fragments=["is a link"], code=2)


def test_files_have_no_card(tmp_path):
    tiny_checkpoints.save(tmp_path / "model", "byte_level_split")
    model = tiny_models.save(tmp_path / "model", "Llama", vocab_size=768)
    data = program.write_samples(tmp_path / "samples.jsonl", SAMPLES)
    file = program.oneshot(model, tmp_path / "out.gguf", "--scheme", "Q8_0", "--algorithm", "rtn")
    program.fails("eval", file, "--dataset", data, "--card", fragments=["[options] --card", "is a file, which has no model card"], code=2)
