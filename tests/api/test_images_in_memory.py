"""Images of models in memory calibrate what they calibrate from a folder."""

import json
import logging

import pytest
from support import program, tiny_illustrated, tiny_mllama
from support.tiny_vision import save_image, save_vision

WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}


def recipe():
    from layerpress.modifiers import GPTQModifier

    return GPTQModifier(ignore=["re:.*lm_head", "re:.*vision.*", "re:.*projector.*", "re:.*visual.*", "re:.*audio.*"],
                        config_groups={"group_0": {"targets": ["Linear"], "weights": WEIGHTS}})


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    return [save_image(folder / f"{number}.png", 30 + 20 * number, 40, seed=number) for number in range(3)]


@pytest.fixture(scope="module")
def mllama(tmp_path_factory, pictures):
    """A checkpoint with a processor, the file of its rows, and what the command makes of them."""
    import torch

    folder = save_vision(tiny_mllama.save(tmp_path_factory.mktemp("mllama") / "model", torch.bfloat16))
    rows = pictures[0].parent / "rows.jsonl"
    rows.write_text("".join(json.dumps({"image": path.name, "text": f"w1 w2 w{number + 3} w4"}) + "\n" for number, path in enumerate(pictures)))
    from layerpress.recipes import recipe_text

    output = program.oneshot(folder, folder.parent / "out", "--recipe", recipe_text(recipe()), "--dataset", rows)
    return folder, rows, output


def loaded(folder, kind="AutoModelForImageTextToText"):
    import transformers

    return getattr(transformers, kind).from_pretrained(folder, dtype="auto"), transformers.AutoProcessor.from_pretrained(folder)


def rows_with_images(pictures):
    from PIL import Image

    return [{"image": Image.open(path), "text": f"w1 w2 w{number + 3} w4"} for number, path in enumerate(pictures)]


@pytest.mark.parametrize("form", ["images", "file", "processed", "collator"])
def test_in_graph(form, mllama, pictures, tmp_path):
    import torch

    import layerpress

    folder, file, expected = mllama
    model, processor = loaded(folder)
    options = {}
    if form == "images":
        rows, options = rows_with_images(pictures), {"processor": processor}
    elif form == "file":
        rows = str(file)
    else:
        as_row = lambda row: dict(processor(images=row["image"], text="<|image|>" + row["text"], return_tensors="pt"))
        rows = [as_row(row) for row in rows_with_images(pictures)]
    if form == "collator":
        rows = [{name: value.tolist() for name, value in row.items()} for row in rows]
        options = {"data_collator": lambda batch: {name: torch.tensor(value) for name, value in batch[0].items()}}
    layerpress.oneshot(model, dataset=rows, recipe=recipe(), output_dir=tmp_path / "out", progress=False, **options)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    assert model.compression.details["uncalibrated"] == []


def test_no_images_are_told(mllama, tmp_path, caplog):
    """Cross-attention layers see no token of text alone."""
    import layerpress

    model, _ = loaded(mllama[0])
    with caplog.at_level(logging.WARNING, "layerpress"):
        layerpress.oneshot(model, dataset=[[1, 2, 3, 4]], recipe=recipe(), output_dir=tmp_path / "out", progress=False)
    told = [record.message for record in caplog.records if "no token" in record.message]
    left = model.compression.details["uncalibrated"]
    assert len(told) == 1 and f"{len(left)} linears" in told[0] and "no sample has images" in told[0]
    assert left and all("cross_attn" in entry["module"] or ".mlp." in entry["module"] for entry in left)


@pytest.mark.parametrize("options, rows, fragment", [
    ({"concatenate": True}, None, "concatenate: is not possible with rows that have images"),
    ({"use_loss_mask": True}, None, "use_loss_mask: is not possible with rows that have images"),
    ({}, [{"pixel_values": [0.0]}], "row 1: has no input_ids beside pixel_values"),
    ({}, [{"input_ids": [[1], [2]], "pixel_values": [0.0]}], "row 1: is a batch of 2 samples with images"),
    ({}, [{"input_ids": [1], "audio_values": [0.0]}], "row 1: audio_values holds sound"),
])
def test_refused(options, rows, fragment, mllama, pictures, tmp_path):
    import layerpress

    model, processor = loaded(mllama[0])
    with pytest.raises(layerpress.Error, match=fragment):
        layerpress.oneshot(model, dataset=rows or rows_with_images(pictures), recipe=recipe(), processor=processor,
                           output_dir=tmp_path / "out", progress=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_rows_for_other_functions(mllama, pictures, tmp_path):
    import layerpress

    folder, file, _ = mllama
    _, processor = loaded(folder)
    rows = [dict(processor(images=row["image"], text="<|image|>" + row["text"], return_tensors="pt")) for row in rows_with_images(pictures)]
    assert layerpress.evaluate(folder, rows)["perplexity"] == layerpress.evaluate(folder, file)["perplexity"]
    given = {"sensitivity": True, "schemes": ["FP8_DYNAMIC"]}
    assert layerpress.inspect(folder, dataset=rows, **given)["modules"] == layerpress.inspect(folder, dataset=file, **given)["modules"]
    layerpress.prepare(folder, rows, tmp_path / "rows.safetensors")
    layerpress.prepare(folder, file, tmp_path / "file.safetensors")
    assert (tmp_path / "rows.safetensors").read_bytes() == (tmp_path / "file.safetensors").read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize("family", ["llava", "qwen3_vl", "gemma3", "qwen2_audio"])
def test_outside_of_the_graph(family, tmp_path):
    """The model in memory embeds the images that a processor has read."""
    import torch

    import layerpress

    folder = tiny_illustrated.save(tmp_path / "model", family, dtype=torch.bfloat16)
    samples = [tiny_illustrated.sample(family, 20 + number, number % 2 + (number == 0), seed=number) for number in range(4)]
    tokens = tiny_illustrated.write_samples(folder, tmp_path / "tokens.safetensors", samples)
    from layerpress.recipes import recipe_text

    expected = program.oneshot(folder, tmp_path / "expected", "--recipe", recipe_text(recipe()), "--dataset", tokens)
    model = tiny_illustrated.model_class(family).from_pretrained(folder, dtype="auto")
    layerpress.oneshot(model, dataset=samples, recipe=recipe(), output_dir=tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (expected / "model.safetensors").read_bytes()
    assert layerpress.evaluate(folder, samples)["perplexity"] == layerpress.evaluate(folder, tokens, model_graph="export")["perplexity"]


def test_rows_without_images_have_empty_lists(mllama, pictures, tmp_path):
    """As Arrow datasets have it."""
    import layerpress

    folder, _, _ = mllama
    model, processor = loaded(folder)
    rows = [{"images": [row["image"]] if number else [], "text": row["text"]} for number, row in enumerate(rows_with_images(pictures))]
    nulls = [{**row, "images": row["images"] or None} for row in rows]
    for name, data in (("empty", rows), ("null", nulls)):
        layerpress.oneshot(model, dataset=data, recipe=recipe(), output_dir=tmp_path / name, processor=processor, progress=False)
        model, processor = loaded(folder)
    assert (tmp_path / "empty" / "model.safetensors").read_bytes() == (tmp_path / "null" / "model.safetensors").read_bytes()
