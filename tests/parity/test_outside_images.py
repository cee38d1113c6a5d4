"""Models whose vision or audio part is not in the graph: logits of samples with images or sound against transformers, refusals, whole runs."""

import json
import shutil
from pathlib import Path

import numpy
import pytest
import torch
import transformers
from layerpress_data import image_writers
from layerpress_data.errors import DataError
from layerpress_data.image_embedder import ImageEmbedder
from safetensors.torch import load_file
from support import program, tiny_illustrated, tiny_models, tiny_vision
from support.selection import nightly_but
from support.tiny_illustrated import sample
from support.watched_runs import killed

TAKEN = ("qwen3_5", "qwen3_5_moe", "qwen2_5_vl", "mistral3", "llava", "llama4", "gemma4", "qwen3_vl", "qwen3_vl_moe",
         "gemma3", "gemma4 bidirectional", "paligemma", "qwen2_audio")


def relative_difference(ours, theirs):
    assert [mine.shape for mine in ours] == [wanted.shape for wanted in theirs]
    return max(numpy.abs(mine - wanted).max() / numpy.abs(wanted).max() for mine, wanted in zip(ours, theirs))


@pytest.mark.parametrize("family", nightly_but(TAKEN, "gemma3", "qwen2_audio", "qwen3_vl"))
def test_logits(family, tmp_path, monkeypatch):
    """Packed: with an image, without, with two of other sizes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tiny_illustrated.save(tmp_path / "model", family)
    samples = [sample(family, 11, 1), sample(family, 9, 0), sample(family, 14, 2)]
    theirs = tiny_illustrated.their_logits(folder, samples)
    assert relative_difference(tiny_illustrated.our_logits(folder, samples, tmp_path), theirs) < 1e-4
    name = "input_features" if family in tiny_illustrated.HEARING else "pixel_values"
    other = tiny_illustrated.their_logits(folder, [{**samples[0], name: sample(family, 11, 1, seed=1)[name]}])
    assert numpy.abs(other[0] - theirs[0]).max() > 1e-2 * numpy.abs(theirs[0]).max()  # images matter


def test_refused():
    """What the mechanism does not hold for is refused by name."""
    embedder = ImageEmbedder(Path("model"))
    causal = torch.ones(1, 1, 5, 5, dtype=torch.bool).tril()
    assert embedder._groups(causal) is None and embedder._groups(None) is None
    image = causal.clone()
    image[..., 1:4, 1:4] = True
    assert embedder._groups({"full": causal, "sliding": image.triu(-1)}).tolist()[1:4] == [embedder._groups(image)[1]] * 3
    assert embedder._groups(image).tolist()[::4] == [-1, -1]
    image[..., 1, 4] = True
    with pytest.raises(DataError, match="not of the same image"):
        embedder._groups(image)
    given = {"deepstack_visual_embeds": [torch.ones(1, 4)], "visual_pos_masks": torch.tensor([[True, False]])}
    assert embedder._added(given, torch.tensor([True, False])).shape == (1, 1, 4)
    with pytest.raises(DataError, match="at other tokens"):
        embedder._added(given, torch.tensor([False, True]))


def test_images_that_overflow(model):
    """Embeddings that are NaN are not taken for text."""
    embedder = ImageEmbedder(Path(model))
    projector = embedder.model().model.multi_modal_projector
    inputs = sample("llava", 14, 2)
    assert len(embedder.embed("row 1", inputs)[1].places) == 32
    plain = projector.forward

    def forward(features):
        made = plain(features)
        made[1] = float("nan")  # of the second image
        return made

    projector.forward = forward
    with pytest.raises(DataError, match="row 1: the vision or audio part of .* makes NaN of an image"):
        embedder.embed("row 1", inputs)


def test_a_quantized_vision_part(model, rows, tmp_path):
    """FP8 codes have the shape of the weights, and would be taken for them."""
    folder = shutil.copytree(model, tmp_path / "model")
    tensors = tiny_models.tensors(folder)
    name = next(name for name in tensors if "multi_modal_projector" in name and name.endswith("1.weight"))
    scale = tensors[name].abs().amax(1, keepdim=True) / 448
    tensors |= {name: (tensors[name] / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale}
    tiny_models.rewrite_tensors(folder, tensors)
    with pytest.raises(DataError, match="is stored quantized .*linear_1.weight_scale.*: name the original model"):
        ImageEmbedder(folder).model()


def test_samples_that_a_model_with_images_writes(model, tmp_path):
    """Text, as of other models."""
    data = program.write_samples(tmp_path / "samples.jsonl", [[5, 6, 7, 8, 9, 10, 11, 12]])
    program.run("prepare", model, "--dataset", data, "--generate", "2", "--output", tmp_path / "tokens.safetensors")
    tokens = load_file(tmp_path / "tokens.safetensors")
    assert len(tokens["sample_offsets"]) == 4 and tokens["input_ids"][:8].tolist() == [5, 6, 7, 8, 9, 10, 11, 12]


def test_embeddings_that_cannot_be_turned(model):
    """What a function behind the projector makes is no turned row, which the proof finds."""
    inputs = sample("llava", 11, 1)
    embedder = ImageEmbedder(Path(model))
    found = image_writers.image_writers(embedder, "row", inputs)
    names = {id(parameter): name for name, parameter in embedder.model().named_parameters()}
    assert {names[id(each.parameter)].split(".", 1)[1] for each in found.writers} == {
        "multi_modal_projector.linear_2.weight", "multi_modal_projector.linear_2.bias"}
    projector = embedder.model().model.multi_modal_projector
    plain = projector.forward
    projector.forward = lambda features: torch.nn.functional.gelu(plain(features))
    with pytest.raises(DataError, match="do not give turned embeddings"):
        image_writers.image_writers(embedder, "row", inputs)
    projector.forward = lambda features: plain(features).detach()
    with pytest.raises(DataError, match="do not give turned embeddings"):
        image_writers.image_writers(embedder, "row", inputs)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tiny_illustrated.save(tmp_path_factory.mktemp("llava") / "model", "llava")
    tiny_illustrated.save_processor(folder)
    return folder


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Texts with and without images."""
    folder = tmp_path_factory.mktemp("rows")
    random = numpy.random.default_rng(3)
    written = []
    for number in range(12):
        text = " ".join(f"w{i}" for i in random.integers(1, 150, size=40))
        row = {"text": text}
        if number % 3:
            tiny_vision.save_image(folder / f"{number}.png", 16 + 8 * (number % 2), 16, seed=number)
            row = {"text": "<image> " + text, "image": f"{number}.png"}
        written.append(row)
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return path


def test_rows_with_images(model, rows, tmp_path, monkeypatch):
    """The processor's own tokens and the vision part's embeddings, in the checkpoint's dtype."""
    program.run("prepare", model, "--dataset", rows, "--output", tmp_path / "tokens.safetensors")
    tokens = load_file(tmp_path / "tokens.safetensors")
    row = json.loads(rows.read_text().splitlines()[1])
    processor = transformers.AutoProcessor.from_pretrained(model)
    from PIL import Image

    given = processor(text=row["text"], images=[Image.open(rows.parent / row["image"])], return_tensors="pt")
    first, last = tokens["sample_offsets"][1:3].tolist()
    assert tokens["input_ids"][first:last].tolist() == given["input_ids"][0].tolist()
    places = tokens["embedding_places"][:tokens["embedding_offsets"][2]]
    assert places.tolist() == (given["input_ids"][0] == tiny_illustrated.IMAGE).nonzero().flatten().tolist()
    whole = transformers.AutoModelForImageTextToText.from_pretrained(model).eval()
    with torch.no_grad():
        wanted = torch.cat(list(whole.model.get_image_features(given["pixel_values"]).pooler_output))
    assert torch.allclose(tokens["embeddings.0"], wanted, atol=1e-5)


def test_a_text_that_names_other_images_than_its_row_has(model, rows, tmp_path):
    path = rows.parent / "two.jsonl"
    path.write_text(json.dumps({"text": "<image> w1 <image> w2", "image": "1.png"}) + "\n")
    program.fails("prepare", model, "--dataset", path, "--output", tmp_path / "tokens.safetensors",
                  fragments=["two.jsonl, line 1", "the text names 2 images, and the row has 1"])


def test_run(model, rows, tmp_path):
    """Images are calibration data: the result differs from that of the same tokens without them, the vision part is copied, and
    transformers loads it."""
    options = ["--dataset", rows, "--scheme", "W4A16", "--group-size", "16", "--ignore", "lm_head"]
    out = program.oneshot(model, tmp_path / "out", *options, "--summary", tmp_path / "summary.json")
    summary = json.loads((tmp_path / "summary.json").read_text())
    program.run("prepare", model, "--dataset", rows, "--output", tmp_path / "tokens.safetensors")
    tokens = load_file(tmp_path / "tokens.safetensors")
    down = next(each for each in summary["modules"] if each["module"].endswith("layers.0.mlp.down_proj"))
    assert down["tokens"] == len(tokens["input_ids"])
    plain = {name: tokens[name] for name in ("input_ids", "sample_offsets")}
    from safetensors.torch import save_file

    save_file(plain, tmp_path / "plain.safetensors")
    blind = program.oneshot(model, tmp_path / "blind", "--dataset", tmp_path / "plain.safetensors", *options[2:])
    mine, other, source = (load_file(folder / "model.safetensors") for folder in (out, blind, model))
    codes = [name for name in mine if name.endswith("weight_packed")]
    assert codes and any(not torch.equal(mine[name], other[name]) for name in codes)
    tower = [name for name in source if "vision_tower" in name or "projector" in name]
    assert tower and all(torch.equal(mine[name], source[name]) for name in tower)
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32).eval()
    given = sample("llava", 11, 1)
    with torch.no_grad():
        compressed = loaded(**given, use_cache=False).logits[0].float().numpy()
    wanted = tiny_illustrated.their_logits(model, [given])[0]
    error = numpy.sqrt(numpy.mean((compressed - wanted) ** 2)) / wanted.std()
    assert 0 < error < 0.5


@pytest.mark.parametrize("tied", [True, False])
def test_a_compressed_head_leaves_the_embedding(tied, tmp_path):
    """Gemma 3 scales its embeddings in an operation of its own. Its config ties the head in two places, of which one may be false."""
    folder = tiny_illustrated.save(tmp_path / "model", "gemma3")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["tie_word_embeddings"] = tied
    (folder / "config.json").write_text(json.dumps(config))
    out = program.oneshot(folder, tmp_path / "out", "--scheme", "FP8_DYNAMIC", "--algorithm", "rtn", "--ignore", "re:.*vision.*")
    made = load_file(out / "model.safetensors")
    source = load_file(folder / "model.safetensors")
    embedding = next(name for name in source if name.endswith("embed_tokens.weight"))
    assert torch.equal(made[embedding], source[embedding])
    assert any(name.endswith("lm_head.weight_scale") for name in made)
    written = json.loads((out / "config.json").read_text())
    assert written["tie_word_embeddings"] is False and written["text_config"]["tie_word_embeddings"] is False
    loaded, info = transformers.AutoModelForImageTextToText.from_pretrained(out, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    given = sample("gemma3", 11, 0)
    with torch.no_grad():
        compressed = loaded.eval()(**given, use_cache=False).logits[0].numpy()
    assert relative_difference([compressed], tiny_illustrated.their_logits(folder, [given])) < 0.3


@pytest.mark.nightly
def test_evaluation(model, rows):
    """The perplexity of rows with images is transformers', without the tokens that images stand for."""
    from PIL import Image

    processor = transformers.AutoProcessor.from_pretrained(model)
    whole = transformers.AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    losses = []
    for line in rows.read_text().splitlines():
        row = json.loads(line)
        images = [Image.open(rows.parent / row["image"])] if "image" in row else None
        given = processor(text=row["text"], images=images, return_tensors="pt")
        with torch.no_grad():
            logits = whole(**given).logits[0].double()
        wanted = given["input_ids"][0, 1:]
        wanted[wanted == tiny_illustrated.IMAGE] = -100
        losses += torch.nn.functional.cross_entropy(logits[:-1], wanted, reduction="none")[wanted >= 0].tolist()
    measured = program.run("eval", model, "--dataset", rows).json()
    assert measured["tokens"] == len(losses)
    assert measured["perplexity"] == pytest.approx(numpy.exp(numpy.mean(losses)), rel=1e-5)


@pytest.mark.nightly
def test_rotated_vision_part(model, rows, tmp_path):
    """Calibrated on the original's embeddings in the turned stream; the result is evaluated with its own, the reference with its own."""
    options = ["--dataset", rows, "--scheme", "W4A16", "--group-size", "32"]
    found = {}
    for quality in ("fast", "max"):
        out = program.oneshot(model, tmp_path / quality, *options, "--quality", quality)
        found[quality] = program.run("eval", out, "--reference", model, "--dataset", rows).json()["kl_divergence"]
        program.run("verify", out, "--source", model)
    assert 0 < found["max"] < 0.8 * found["fast"]
    program.run("prepare", model, "--dataset", rows, "--output", tmp_path / "tokens.safetensors")
    program.fails("eval", tmp_path / "max", "--reference", model, "--dataset", tmp_path / "tokens.safetensors",
                  fragments=["embeddings of images that one vision part made", "pass the rows with their images"])
    one = program.oneshot(model, tmp_path / "one", *options, "--quality", "max", "--memory-budget", "1GiB")
    assert (one / "model.safetensors").read_bytes() == (tmp_path / "max" / "model.safetensors").read_bytes()


def test_embeddings_of_another_model(model, tmp_path):
    """A model that takes no images, and one that does not compute with all of what is given, refuse them by name."""
    tokens = tiny_illustrated.write_samples(model, tmp_path / "tokens.safetensors", [sample("llava", 40, 2)])
    from support import any_model

    text = any_model.save(tmp_path / "text", "lfm2")
    program.fails("oneshot", text, "--output", tmp_path / "out", "--dataset", tokens, "--scheme", "W4A16", "--group-size", "16",
                  fragments=["[data.images] sample 1", "takes none"])
    for family, fragment in (("qwen3_vl", "2 layers to add, but the model adds 0"), ("gemma3", "bidirectional image attention")):
        own = tiny_illustrated.save(tmp_path / family, family)
        tokens = tiny_illustrated.write_samples(own, tmp_path / "other.safetensors", [sample(family, 40, 2)])
        program.fails("oneshot", model, "--output", tmp_path / "out", "--dataset", tokens, "--scheme", "W4A16", "--group-size",
                      "16", fragments=["[data.images] sample 1", fragment])


class Stacked:
    """A model whose layers add features of images, and samples for it."""

    def __init__(self, folder):
        self.model = tiny_illustrated.save(folder / "model", "qwen3_vl")
        self.inputs = [sample("qwen3_vl", 60, number % 3, seed=number) for number in range(40)]
        self.tokens = tiny_illustrated.write_samples(self.model, folder / "tokens.safetensors", self.inputs)
        self.options = ["--dataset", self.tokens, "--scheme", "W4A16", "--group-size", "16", "--ignore", "lm_head", "--threads", "1",
                        "--sequential-targets", "Linear"]
        self.out = program.oneshot(self.model, folder / "out", *self.options)

    def change_images(self, change, *kinds):
        """Replaces the tensors of these kinds in the file of samples."""
        from safetensors import safe_open
        from safetensors.torch import save_file

        with safe_open(self.tokens, "pt") as file:
            metadata = file.metadata()
        tensors = {name: value.clone() for name, value in load_file(self.tokens).items()}
        for name in tensors:
            if name.startswith(kinds):
                tensors[name] = change(tensors[name])
        save_file(tensors, self.tokens, metadata=metadata)


@pytest.fixture(scope="module")
def stacked(tmp_path_factory):
    return Stacked(tmp_path_factory.mktemp("stacked"))


def codes(folder, layer):
    found = load_file(folder / "model.safetensors")
    return {name: found[name] for name in found if f".layers.{layer}." in name and name.endswith("weight_packed")}


@pytest.mark.nightly
def test_features_that_layers_add(stacked, tmp_path):
    """They change what is calibrated behind the first layer, not in it; transformers loads the result."""
    kept = stacked.tokens.read_bytes()
    try:
        stacked.change_images(torch.zeros_like, "added_embeddings.")
        without = program.oneshot(stacked.model, tmp_path / "without", *stacked.options)
    finally:
        stacked.tokens.write_bytes(kept)
    first, second = ([codes(folder, layer) for folder in (stacked.out, without)] for layer in (0, 1))
    assert first[0] and all(torch.equal(first[0][name], first[1][name]) for name in first[0])
    assert second[0] and any(not torch.equal(second[0][name], second[1][name]) for name in second[0])
    loaded = transformers.AutoModelForImageTextToText.from_pretrained(stacked.out, dtype=torch.float32).eval()
    with torch.no_grad():
        compressed = loaded(**stacked.inputs[2], use_cache=False).logits[0].float().numpy()
    wanted = tiny_illustrated.their_logits(stacked.model, [stacked.inputs[2]])[0]
    assert 0 < numpy.sqrt(numpy.mean((compressed - wanted) ** 2)) / wanted.std() < 0.5


@pytest.mark.nightly
def test_resumed_with_images(stacked, tmp_path):
    """The same images give the same result; other ones of the same sizes are refused."""
    out = tmp_path / "out"
    killed(stacked.model, out, *stacked.options, subgraphs=4)
    kept = stacked.tokens.read_bytes()
    for kind in ("embeddings.", "added_embeddings."):
        try:
            stacked.change_images(lambda values: values + 0.5, kind)
            program.fails("oneshot", stacked.model, "--output", out, *stacked.options, "--resume",
                          code=2, fragments=["the dataset's tokens differ, or its images"])
        finally:
            stacked.tokens.write_bytes(kept)
    program.oneshot(stacked.model, out, *stacked.options, "--resume")
    mine, wanted = (load_file(folder / "model.safetensors") for folder in (out, stacked.out))
    assert all(torch.equal(mine[name], wanted[name]) for name in wanted)
