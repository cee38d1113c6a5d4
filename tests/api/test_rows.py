"""Rows in Python: which tokens they give, and which of them are refused."""

import json
import logging
import os
import shutil
import subprocess
import sys

import pytest
from safetensors.torch import load_file
from support import program
from support.local_hub import LocalHub


def tokens_of(model, rows, folder, **arguments):
    """The samples of a token file."""
    import layerpress

    layerpress.prepare(model, rows, folder / "tokens.safetensors", **arguments)
    stored = load_file(folder / "tokens.safetensors")
    ends = stored["sample_offsets"].tolist()
    return [stored["input_ids"].tolist()[first:last] for first, last in zip(ends, ends[1:])]


def test_cells_of_a_table_may_be_arrays(model, tmp_path):
    import numpy
    import pandas

    turn = numpy.array([{"role": "user", "content": "w1 w2"}], dtype=object)
    assert tokens_of(model, pandas.DataFrame({"messages": [turn, None]}), tmp_path) == [[1, 2]]


def test_texts_and_messages_may_alternate(model, tmp_path):
    rows = [{"text": "w3", "messages": None}, {"text": None, "messages": [{"role": "user", "content": "w1"}]}, {"messages": None}]
    assert tokens_of(model, rows, tmp_path) == [[3], [1]]


@pytest.mark.parametrize("row, fragment", [
    ({"text": 5}, "row 1: text holds a int, neither a text nor a list"),
    ({"input_ids": [1, 2, 3], "attention_mask": [1, 2, 2]}, "'attention_mask' is no list with 0 or 1"),
    ({"input_ids": [1, 2], "attention_mask": [0.0, -1e9]}, "'attention_mask' is no list with 0 or 1"),
    ({"input_ids": [1, 2], "attention_mask": [1, 1, 1]}, "'attention_mask' is no list with 0 or 1"),
])
def test_refused_rows(row, fragment, model, tmp_path):
    import layerpress

    with pytest.raises(layerpress.DataError, match="row 1") as caught:
        layerpress.prepare(model, [row], tmp_path / "tokens.safetensors")
    assert fragment in str(caught.value)


@pytest.mark.parametrize("row", [
    {"input_ids": [1, 2, 3, 4], "attention_mask": [1] * 4, "loss_mask": [0, 1, 1, 1, 1, 0]},
    {"input_ids": [1, 2], "loss_mask": [1, 0.7]},
])
def test_refused_loss_masks(row, model, tmp_path):
    import layerpress

    with pytest.raises(layerpress.DataError, match=r"row 1: 'loss_mask' (has 6 entries|entry 1 is '0.7')"):
        layerpress.prepare(model, [row], tmp_path / "tokens.safetensors", use_loss_mask=True)


def counted(model, dataset, folder, **arguments):
    import layerpress

    return layerpress.oneshot(model, dataset=dataset, scheme="W8A8", output_dir=folder, progress=False, **arguments).details["samples"]


def test_how_many_rows_count(model, tmp_path):
    """None and a data loader mean all, as in LLM Compressor."""
    from torch.utils.data import DataLoader

    rows = [{"input_ids": [1 + index % 50, 2]} for index in range(530)]
    assert counted(model, rows, tmp_path / "usual") == 512
    assert counted(model, rows, tmp_path / "all", num_calibration_samples=None) == 530
    loader = DataLoader(rows, batch_size=5, collate_fn=lambda batch: {"input_ids": [row["input_ids"] for row in batch]})
    assert counted(model, loader, tmp_path / "loader") == 530
    assert counted(model, loader, tmp_path / "some", num_calibration_samples=7) == 7


@pytest.mark.parametrize("rows", [[[1, 2, 3], [4, 5, 6]], [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6]}]])
def test_a_loader_that_turns_lists_around(rows, model, tmp_path):
    from torch import tensor
    from torch.utils.data import DataLoader

    import layerpress

    with pytest.raises(layerpress.DataError, match="default collate_fn turns lists of token ids around"):
        layerpress.prepare(model, DataLoader(rows, batch_size=2), tmp_path / "tokens.safetensors")
    sound = DataLoader([{"input_ids": tensor([1, 2, 3])}, {"input_ids": tensor([4, 5, 6])}], batch_size=2)
    assert tokens_of(model, sound, tmp_path) == [[1, 2, 3], [4, 5, 6]]
    assert tokens_of(model, DataLoader([{"text": "w1"}, {"text": "w2"}], batch_size=None), tmp_path) == [[1], [2]]


def test_files_by_split(model, tmp_path):
    """As the datasets package takes them; a name of a file is never a row."""
    import layerpress

    rows = {name: tmp_path / f"{name}.jsonl" for name in ("train", "validation")}
    for number, path in enumerate(rows.values(), start=1):
        path.write_text("".join(f'{{"input_ids": [{number}, {index}]}}\n' for index in range(1, 4)))
    by_split = {name: str(path) for name, path in rows.items()}
    for given in ({"dataset": by_split}, {"dataset_path": by_split}, {"dataset": "json", "dataset_path": by_split}, {"dataset": [str(rows["train"])]},
                  {"dataset_path": [rows["train"]]}):
        assert layerpress.oneshot(model, scheme="W8A8", output_dir=tmp_path / "out", overwrite=True, progress=False, **given).details["tokens"] == 6
    tokens = tmp_path / "tokens.safetensors"
    assert tokens_of(model, by_split, tmp_path, dataset_split="validation[1:]") == [[2, 2], [2, 3]]
    for wrong, message in (({"dataset": by_split, "dataset_split": "test"}, "no split test; name one of train, validation"),
                           ({"dataset": list(by_split.values())}, "2 files; pass one"), ({"dataset": {"train": 7}}, "is no dataset"),
                           ({"dataset": [by_split["train"], "nope.jsonl"]}, "2 files; pass one"), ({"dataset": ["nope.jsonl"]}, "nope.jsonl"),
                           ({"dataset": {"train": ["nope.jsonl"]}}, "nope.jsonl"), ({"dataset": {"/nope/a*.jsonl"}}, "nope/a")):
        with pytest.raises(layerpress.Error, match=message):
            layerpress.prepare(model, wrong.pop("dataset"), tokens, **wrong)


def test_batches_of_a_loader(model, tmp_path):
    from datasets import Dataset
    from torch import tensor
    from torch.utils.data import DataLoader, TensorDataset

    import layerpress

    assert tokens_of(model, DataLoader(TensorDataset(tensor([[1, 2], [3, 4], [5, 6]])), batch_size=2), tmp_path) == [[1, 2], [3, 4], [5, 6]]
    texts = [{"text": f"w{index}"} for index in range(1, 4)]
    assert tokens_of(model, DataLoader([text["text"] for text in texts], batch_size=2), tmp_path) == [[1], [2], [3]]
    assert tokens_of(model, DataLoader(texts, batch_size=2, collate_fn=lambda rows: rows), tmp_path) == [[1], [2], [3]]
    ids = tensor([[1, 2], [3, 4]])
    with pytest.raises(layerpress.DataError, match="2 tensors without names"):
        tokens_of(model, DataLoader(TensorDataset(ids, ids), batch_size=2), tmp_path)
    assert tokens_of(model, DataLoader(texts, batch_size=2), tmp_path) == [[1], [2], [3]]
    assert tokens_of(model, Dataset.from_list(texts).batch(2), tmp_path) == [[1], [2], [3]]


def with_limit(model, folder):
    """A tokenizer whose model_max_length is 3."""
    from transformers import AutoTokenizer

    shutil.copytree(model, folder)
    tokenizer = AutoTokenizer.from_pretrained(model, model_max_length=3)
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_the_limit_of_the_tokenizer(model, tmp_path, caplog):
    """It cuts texts, not the ids of tokens, and a warning says so."""
    import layerpress

    caplog.set_level(logging.WARNING)
    tokenizer = with_limit(model, tmp_path / "limited")
    rows = [{"text": "w1 w2 w3 w4 w5"}, {"text": "w6"}]
    assert tokens_of(tmp_path / "limited", rows, tmp_path) == [[1, 2, 3], [6]]
    assert "texts are cut to 3 tokens, the tokenizer's model_max_length, not to max_seq_length=2048" in caplog.text
    assert tokens_of(tmp_path / "limited", [[1, 2, 3, 4]], tmp_path) == [[1, 2, 3, 4]]
    caplog.clear()
    assert tokens_of(tmp_path / "limited", rows, tmp_path, max_seq_length=2) == [[1, 2], [6]] and "are cut" not in caplog.text
    summary = layerpress.oneshot(model, dataset=rows, tokenizer=tokenizer, scheme="W8A8", output_dir=tmp_path / "out", progress=False)
    assert summary.details["tokens"] == 4 and "texts are cut to 3 tokens" in caplog.text


def test_a_setting_of_the_tokenizer_is_kept(model, tmp_path):
    """split_special_tokens, which save_pretrained() forgets."""
    from layerpress.calibration import saved_tokenizer
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.split_special_tokens = True
    assert json.loads((saved_tokenizer(tokenizer, tmp_path) / "tokenizer_config.json").read_text())["split_special_tokens"] is True


def test_what_a_preprocessing_function_returns(model, tmp_path):
    """As the datasets package's map(): more columns are added, None stands for the row that was changed."""
    def changed(row):
        row["text"] = "w1 w2"

    for function, tokens in ((lambda row: {"more": 3}, 1), (changed, 2), (lambda row: {"text": "w1 w2 w3"}, 3)):
        from layerpress import oneshot

        summary = oneshot(model, dataset=[{"text": "w9"}], preprocessing_func=function, scheme="W8A8", output_dir=tmp_path / str(tokens),
                          progress=False)
        assert summary.details["tokens"] == tokens


def test_numbers_of_numpy(model, samples, tmp_path):
    import numpy
    from layerpress.modifiers import GPTQModifier

    recipe = GPTQModifier(scheme="W8A16", ignore=["lm_head"], dampening_frac=numpy.float32(0.125))
    assert recipe.arguments["dampening_frac"] == 0.125
    assert counted(model, samples, tmp_path / "out", num_calibration_samples=numpy.int64(3), shuffle_calibration_samples=numpy.bool_(True)) == 3


def test_an_empty_recipe(model, samples, tmp_path):
    import layerpress

    with pytest.raises(layerpress.RecipeError, match="the text is empty"):
        layerpress.oneshot(model, dataset=samples, recipe="", output_dir=tmp_path / "out")


@pytest.mark.parametrize("ignore", ["lm_head", ["lm_head"]])
def test_one_name_to_ignore(ignore, model, tmp_path):
    import layerpress

    layerpress.model_free_ptq(model, tmp_path / "out", scheme="FP8_DYNAMIC", ignore=ignore, progress=False)
    assert "lm_head" in json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["ignore"]


def test_no_code_of_a_tokenizer_runs(model, tmp_path, monkeypatch):
    """Not even after a question on the terminal."""
    import layerpress

    evil = tmp_path / "evil"
    evil.mkdir()
    (evil / "config.json").write_text('{"model_type": "own"}')
    (evil / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["own.Own", null]}, "tokenizer_class": "Own"}')
    (evil / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Own: pass\n")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(layerpress.UsageError, match="no tokenizer is there for it"):
        layerpress.oneshot(model, tokenizer=evil, dataset=[{"text": "w1"}], scheme="W8A8", output_dir=tmp_path / "out")
    assert not (tmp_path / "ran").exists()


CALL = """
import sys, layerpress
from transformers import AutoTokenizer
model, named, out, download = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(named) if "/" == named[0] else named
layerpress.oneshot(model, tokenizer=tokenizer, dataset=[{"text": "w1 w2"}], scheme="W8A8", output_dir=out, progress=False,
                   download=download == "yes")
"""


@pytest.mark.nightly
def test_tokenizers_and_the_hub(model, tmp_path):
    """One by id is fetched with download=True only. A tokenizer beside a model of the cache asks nothing of the hub."""
    hub = LocalHub()
    hub.add("org/name", model)

    def called(name, tokenizer, download="no"):
        hub.requests.clear()
        paths = [program.PROGRAM.parent / "python", *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, **hub.environment(tmp_path, PYTHONPATH=os.pathsep.join(map(str, paths)))}
        done = subprocess.run([sys.executable, "-c", CALL, str(name), str(tokenizer), str(tmp_path / "out"), download], check=False,
                              capture_output=True, text=True, env=environment)
        return done, [path for _, path in hub.requests if "org/name" in path]

    done, asked = called(model, "org/name")
    assert done.returncode == 1 and "org/name: no tokenizer is there for it" in done.stderr and "download=True, which fetches it" in done.stderr
    assert asked == []
    done, asked = called("org/name", model)
    assert done.returncode == 1 and "add download=True" in done.stderr and asked == []
    done, asked = called("org/name", "org/name", "yes")
    assert done.returncode == 0 and asked, done.stderr
    shutil.rmtree(tmp_path / "out")
    done, asked = called("org/name", model)
    assert done.returncode == 0 and asked == [], done.stderr
    hub.close()
