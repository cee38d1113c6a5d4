"""Rows with images: what is stored is what the checkpoint's own processor gives, and bad images are named."""

import json

import numpy
import pytest
from support.tiny_vision import save_image, save_vision

pytest.importorskip("PIL", reason="images need the package pillow")

BOS, IMAGE = 82, 96


@pytest.fixture(scope="session")
def vision(tmp_path_factory):
    return save_vision(tmp_path_factory.mktemp("vision"))


@pytest.fixture
def data(tmp_path):
    """A folder with images of several shapes, and a function that writes rows beside them."""
    folder = tmp_path / "data"
    folder.mkdir()
    save_image(folder / "square.png", 20, 20)
    save_image(folder / "wide.jpg", 90, 25, seed=1)
    save_image(folder / "tall.webp", 30, 120, seed=2)
    save_image(folder / "large.png", 300, 310, seed=3)
    save_image(folder / "gray.png", 40, 30, seed=4, mode="L")
    save_image(folder / "clear.png", 40, 30, seed=5, mode="RGBA")

    def write(*rows):
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def stored(outcome):
    """Of each sample its ids, and of those with images [pixels of each image], ratios, filled, mask."""
    from safetensors import safe_open
    from safetensors.numpy import load_file

    tensors = load_file(outcome.token_file)
    with safe_open(outcome.token_file, "np") as file:
        version = file.metadata()["format"]
    if "image_offsets" not in tensors:
        assert version == "layerpress.calibration.v1" and sorted(tensors) == ["input_ids", "sample_offsets"]
        return [(ids, None) for ids in outcome.samples]
    assert version == "layerpress.calibration.v2"
    samples, mask_row, offsets = [], 0, tensors["image_offsets"]
    for ids, first, last in zip(outcome.samples, offsets, offsets[1:]):
        rows = len(ids) * int(last - first)
        mask = tensors["cross_attention_mask"][mask_row : mask_row + rows].reshape(len(ids), last - first, 4)
        mask_row += rows
        pixels = [tensors[f"pixel_values.{image}"] for image in range(first, last)]
        images = pixels, tensors["aspect_ratio_ids"][first:last], tensors["aspect_ratio_mask"][first:last], mask
        samples.append((ids, images if last > first else None))
    assert mask_row == len(tensors["cross_attention_mask"])
    return samples


def expected(vision, text, images, special, length=2048):
    from PIL import Image
    from transformers import AutoProcessor

    processor = AutoProcessor.from_pretrained(vision, local_files_only=True)
    opened = [Image.open(image) for image in images]
    given = processor(images=opened, text=text, add_special_tokens=special, return_tensors="np")
    filled = given["aspect_ratio_mask"][0]
    pixels = [tiles[: count.sum()] for tiles, count in zip(given["pixel_values"][0], filled)]
    for tiles, count in zip(given["pixel_values"][0], filled):
        assert not tiles[count.sum() :].any()
    mask = given["cross_attention_mask"][0][:length]
    return given["input_ids"][0].tolist()[:length], (pixels, given["aspect_ratio_ids"][0], filled, mask)


def assert_same(found, wanted):
    assert found[0] == wanted[0]
    pixels, *others = found[1]
    assert [len(tiles) for tiles in pixels] == [len(tiles) for tiles in wanted[1][0]]
    for mine, theirs in zip([*pixels, *others], [*wanted[1][0], *wanted[1][1:]]):
        assert numpy.array_equal(mine, theirs)


def test_text_with_images(prepare, vision, data):
    folder = data().parent
    path = data(
        {"text": "<|image|>w1 w2", "image": "square.png"},
        {"text": "w5 <|image|> w6 <|image|> w7 w8", "images": ["wide.jpg", "tall.webp"]},
        {"text": "w3 w4", "image": None},
        {"text": "w9 <|image|> w10", "image": str(folder / "large.png")},
    )
    samples = stored(prepare(model=vision, dataset=path))
    assert_same(samples[0], expected(vision, "<|image|>w1 w2", [folder / "square.png"], True))
    two = [folder / "wide.jpg", folder / "tall.webp"]
    assert_same(samples[1], expected(vision, "w5 <|image|> w6 <|image|> w7 w8", two, True))
    assert samples[2] == ([BOS, 3, 4], None)
    assert_same(samples[3], expected(vision, "w9 <|image|> w10", [folder / "large.png"], True))
    # The shapes were chosen to take different numbers of tiles.
    assert {len(tiles) for _, images in samples if images for tiles in images[0]} >= {1, 4}
    assert max(abs(tiles).max() for _, images in samples if images for tiles in images[0]) > 0.5


def test_text_that_names_no_image_gets_them_in_front(prepare, vision, data):
    path = data({"text": "w1 w2", "images": ["square.png", "gray.png"]}, {"text": None, "image": "clear.png"})
    samples = stored(prepare(model=vision, dataset=path))
    folder = path.parent
    two = [folder / "square.png", folder / "gray.png"]
    assert_same(samples[0], expected(vision, "<|image|><|image|>w1 w2", two, True))
    assert_same(samples[1], expected(vision, "<|image|>", [folder / "clear.png"], True))


def test_messages(prepare, vision, data):
    parts = [{"type": "text", "text": "w1"}, {"type": "image"}, {"type": "text", "text": "w2"}]
    path = data(
        {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": "w3"}], "image": "wide.jpg"},
        {"messages": [{"role": "assistant", "content": "w5"}, {"role": "user", "content": "w4"}], "image": "gray.png"},
        {"messages": [{"role": "user", "content": [{"type": "image", "path": "square.png"}, *parts[2:]]}]},
        {"messages": [{"role": "user", "content": "w6"}]},
    )
    samples = stored(prepare(model=vision, dataset=path))
    bos, folder = "<|begin_of_text|>", path.parent
    texts = [f"{bos} user w1 <|image|> w2 assistant w3", f"{bos} assistant w5 user <|image|> w4",
             f"{bos} user <|image|> w2"]
    images = ["wide.jpg", "gray.png", "square.png"]
    for sample, text, image in zip(samples, texts, images):
        assert_same(sample, expected(vision, text, [folder / image], False))
    assert samples[3] == ([BOS, 80, 6], None)


def test_long_samples_are_cut_with_their_masks(prepare, vision, data):
    path = data({"text": "w1 <|image|> w2 w3 w4 <|image|> w5", "images": ["square.png", "wide.jpg"]})
    samples = stored(prepare(model=vision, dataset=path, max_seq_length=5))
    images = [path.parent / "square.png", path.parent / "wide.jpg"]
    wanted = expected(vision, "w1 <|image|> w2 w3 w4 <|image|> w5", images, True, length=5)
    assert IMAGE in wanted[0] and len(samples[0][0]) == 5
    assert_same(samples[0], wanted)


def test_images_in_parquet_files_and_datasets(prepare, vision, data, tmp_path):
    datasets = pytest.importorskip("datasets")
    folder = data().parent
    wanted = expected(vision, "<|image|>w1", [folder / "square.png"], True)
    rows = {"text": ["<|image|>w1"], "image": [str(folder / "square.png")]}
    features = datasets.Features({"text": datasets.Value("string"), "image": datasets.Image()})
    table = datasets.Dataset.from_dict(rows, features=features)
    table.save_to_disk(tmp_path / "saved")
    assert_same(stored(prepare(model=vision, dataset=tmp_path / "saved"))[0], wanted)
    held = {"bytes": (folder / "square.png").read_bytes(), "path": None}
    datasets.Dataset.from_dict({"text": ["<|image|>w1"], "image": [held]}, features=features).to_parquet(
        tmp_path / "held.parquet")
    assert_same(stored(prepare(model=vision, dataset=tmp_path / "held.parquet"))[0], wanted)


def test_csv(prepare, vision, data):
    folder = data().parent
    (folder / "rows.csv").write_text("text,image\n<|image|>w1,square.png\nw2,\n")
    samples = stored(prepare(model=vision, dataset=folder / "rows.csv"))
    assert_same(samples[0], expected(vision, "<|image|>w1", [folder / "square.png"], True))
    assert samples[1] == ([BOS, 2], None)


def test_rows_of_a_division(prepare, vision, data):
    path = data(*({"text": f"<|image|>w{i}", "image": "square.png"} for i in range(1, 6)))
    outcome = prepare(model=vision, dataset=path, rows=[1, 3])
    assert outcome.summary["rows"] == 2
    assert [ids[-1] for ids, _ in stored(outcome)] == [2, 3]


def test_without_images_only_the_tokenizer_is_needed(prepare, vision, data, tmp_path):
    checkpoint = save_vision(tmp_path / "checkpoint")
    (checkpoint / "preprocessor_config.json").unlink()
    outcome = prepare(model=checkpoint, dataset=data({"text": "w1 w2"}))
    assert stored(outcome) == [([BOS, 1, 2], None)]


def test_models_without_vision_ignore_images(prepare, data):
    outcome = prepare(dataset=data({"text": "w1 w2", "image": "missing.png"}))
    assert stored(outcome) == [([1, 2], None)]


def test_unreadable_images_are_named(fails, vision, data):
    good = {"text": "<|image|>w1", "image": "square.png"}
    row = lambda image: data(good, {"text": "<|image|>w1", "image": image})
    path = data()
    (path.parent / "broken.png").write_bytes((path.parent / "large.png").read_bytes()[:2000])
    (path.parent / "text.png").write_text("this is no picture")
    for image, fragment in [
        ("missing.png", "no such file"), ("broken.png", "cannot be read"), ("text.png", "cannot be read"),
        (7, "int"), ("http://example.org/a.png", "not a file"), ([None], "null"), ("", "names an image"),
        ({"bytes": None, "path": "missing.png"}, "no such file"), ("../square.png", "outside the dataset's folder"),
        ("/etc/passwd", "outside the dataset's folder")]:
        fails("rows.jsonl, line 2", fragment, model=vision, dataset=row(image))


def test_texts_and_images_that_do_not_match(fails, vision, data):
    for row in [
        {"text": "<|image|>w1 <|image|>", "image": "square.png"}, {"text": "<|image|>w1", "images": []},
        {"text": "<|image|>w1", "images": ["square.png", "wide.jpg"]}, {"input_ids": [1, 2], "image": "square.png"},
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        {"messages": [{"role": "user", "content": "w1 <image> w2 <image>"}], "images": ["wide.jpg"]},
        {"messages": [{"role": "user", "content": [{"type": "image", "path": "wide.jpg"}]}], "images": ["square.png"]}]:
        fails("rows.jsonl, line 1", model=vision, dataset=data(row))


def test_images_in_both_columns_are_refused(fails, vision, data):
    row = {"text": "<|image|>w1", "image": "square.png", "images": ["wide.jpg"]}
    fails("rows.jsonl, line 1", "'image' and 'images' both hold images", model=vision, dataset=data(row))


def part_of_message(part):
    return {"messages": [{"role": "user", "content": [part, {"type": "text", "text": "w1"}]}]}


def test_images_as_other_tools_name_them(prepare, vision, data):
    row = part_of_message({"type": "image_url", "image_url": {"url": "square.png"}})
    url = stored(prepare(model=vision, dataset=data(row)))
    wanted = stored(prepare(model=vision, dataset=data(part_of_message({"type": "image", "path": "square.png"}))))
    assert url[0][0] == wanted[0][0] and numpy.array_equal(url[0][1][0][0], wanted[0][1][0][0])


def test_what_nothing_reads_is_refused(prepare, fails, data, tmp_path):
    vision = save_vision(tmp_path / "checkpoint")
    for kind in ("audio", "input_audio", "video", "video_url"):
        row = part_of_message({"type": kind, "path": "a"})
        fails("rows.jsonl, line 1", f"a part of type '{kind}'", model=vision, dataset=data(row))
        fails("rows.jsonl, line 1", f"a part of type '{kind}'", dataset=data(row))
    fails("rows.jsonl, line 1", "is not a file", model=vision,
          dataset=data(part_of_message({"type": "image_url", "image_url": "http://example.org/a.png"})))
    fails("rows.jsonl, line 1", "'video' holds", model=vision, dataset=data({"text": "w1", "video": "a.mp4"}))
    with_sound = {"text": "w1", "audio": "a.wav", "videos": [], "video": ""}
    config = json.loads((vision / "config.json").read_text())
    (vision / "config.json").write_text(json.dumps({**config, "audio_config": {}}))
    fails("rows.jsonl, line 1", "'audio' holds", model=vision, dataset=data(with_sound))
    (vision / "config.json").write_text(json.dumps(config))  # of a model without sound
    assert stored(prepare(model=vision, dataset=data(with_sound)))


def test_torchvision_is_named_where_it_is_at_fault():
    from layerpress_data.errors import MissingPackageError

    inner = RuntimeError("operator torchvision::nms does not exist")
    outer = ImportError("Could not import module 'Gemma4Processor'")
    outer.__cause__ = inner
    said = str(MissingPackageError("pillow", "the image processor", outer))
    assert "'torchvision'" in said and "nms does not exist" in said and "pip install torchvision" in said
    assert "pip install pillow" in str(MissingPackageError("pillow", "the image processor", ImportError("No module named 'PIL'")))


def test_images_cannot_be_joined(fails, vision, data):
    path = data({"text": "<|image|>w1", "image": "square.png"})
    fails("rows.jsonl, line 1", "concatenate", model=vision, dataset=path, concatenate=True, max_seq_length=2)
    fails("rows.jsonl, line 1", "concatenate", model=vision, dataset=path, rows=[0, 1], uncut=True)


def test_checkpoint_without_image_processor(fails, data, tmp_path):
    checkpoint = save_vision(tmp_path / "checkpoint")
    (checkpoint / "preprocessor_config.json").unlink()
    path = data({"text": "<|image|>w1", "image": "square.png"})
    fails("preprocessor_config.json", model=checkpoint, dataset=path)
    (checkpoint / "preprocessor_config.json").write_text("{")
    fails("preprocessor_config.json", model=checkpoint, dataset=path)


def test_photos_that_lie_on_their_side(prepare, vision, data):
    """Cameras say how a picture is turned; what is read is what people see."""
    from PIL import Image

    folder = data().parent
    turned = Image.open(folder / "wide.jpg").transpose(Image.Transpose.ROTATE_90)
    turned.save(folder / "upright.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned.transpose(Image.Transpose.ROTATE_90).save(folder / "turned.png", exif=exif)
    samples = stored(prepare(model=vision, dataset=data({"text": "w1", "image": "turned.png"}, {"text": "w1", "image": "upright.png"})))
    assert_same(samples[0], expected(vision, "<|image|>w1", [folder / "upright.png"], True))
    assert_same(samples[1], samples[0])


def test_marks_of_datasets_in_the_place_of_images(prepare, vision, data):
    """LLaVA's rows and TRL's write <image> whatever the model's token is."""
    folder = data().parent
    talk = [{"from": "human", "value": "<image>\nw1"}, {"from": "gpt", "value": "w2"}]
    two = [{"role": "user", "content": "w1 <image> w2\n<image>"}, {"role": "assistant", "content": [{"type": "text", "text": "w3"}]}]
    own = [{"role": "user", "content": "<|image|>w1"}]
    samples = stored(prepare(model=vision, dataset=data(
        {"conversations": talk, "image": "square.png"}, {"messages": two, "images": ["wide.jpg", "tall.webp"]},
        {"messages": own, "images": ["square.png"]}, {"text": "w5 <image> w6", "image": "gray.png"})))
    bos = "<|begin_of_text|>"
    square = [folder / "square.png"]
    assert_same(samples[0], expected(vision, f"{bos} user <|image|> w1 assistant w2", square, False))
    both = [folder / "wide.jpg", folder / "tall.webp"]
    assert_same(samples[1], expected(vision, f"{bos} user w1 <|image|> w2 <|image|> assistant w3", both, False))
    assert_same(samples[2], expected(vision, f"{bos} user <|image|> w1", square, False))
    assert_same(samples[3], expected(vision, "w5 <|image|> w6", [folder / "gray.png"], True))


def test_names_with_a_scheme_of_files(prepare, vision, data):
    folder = data().parent
    named = part_of_message({"type": "image", "url": (folder / "square.png").as_uri()})
    wanted = stored(prepare(model=vision, dataset=data(part_of_message({"type": "image", "path": "square.png"}))))
    assert_same(stored(prepare(model=vision, dataset=data(named)))[0], wanted[0])


@pytest.mark.parametrize("kind", ["vision", "image"])
def test_what_stands_around_an_image(kind, tmp_path):
    """Qwen's names and GLM's."""
    from types import SimpleNamespace

    from layerpress_data.vision_processor import VisionProcessor

    (tmp_path / "config.json").write_text(json.dumps({f"{kind}_start_token_id": 1, f"{kind}_end_token_id": 2}))
    tokenizer = SimpleNamespace(convert_ids_to_tokens=lambda ids: [f"<{i}>" for i in ids])
    processor = SimpleNamespace(image_token="<i>", tokenizer=tokenizer)
    assert VisionProcessor(tmp_path)._placeholder(processor) == "<1><i><2>"
