"""Foreseeable faults: one line that says what, where and what to do, the right exit code, nothing left behind."""

import json
import os
import sys

import pytest
from support import tiny_checkpoints


@pytest.fixture
def file(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def good(*more):
    return '{"text": "w1"}\n' + "".join(line + "\n" for line in more)


@pytest.mark.parametrize(
    "name, content, fragments",
    [
        ("a.jsonl", good("", "{'text': 1}"), ["a.jsonl, line 3", "not JSON"]),
        ("a.jsonl", good('{"text": "cut'), ["a.jsonl, line 2", "not JSON"]),
        ("a.jsonl", good("[" * 100_000), ["a.jsonl, line 2", "not JSON"]),
        ("a.jsonl", good('{"n": ' + "1" * 5000 + "}"), ["a.jsonl, line 2", "not JSON"]),
        ("a.jsonl", good("[1, 2]"), ["a.jsonl, line 2", "list, not an object"]),
        ("a.jsonl", good('{"body": "x", "id": 3}'), ["a.jsonl, line 2", "'body', 'id'", "--text-column"]),
        ("a.jsonl", good("{}"), ["a.jsonl, line 2", "the columns there are none"]),
        ("a.jsonl", good('{"text": 3}'), ["a.jsonl, line 2", "'text' is neither a text nor", "int"]),
        ("a.jsonl", good('{"text": "\\ud800"}'), ["a.jsonl, line 2", "surrogate"]),
        ("a.jsonl", b'{"text": "w1"}\n\n{"text": "\xff"}\n', ["a.jsonl, line 3", "byte 11", "UTF-8"]),
        ("a.jsonl", good('{"input_ids": "1 2"}'), ["a.jsonl, line 2", "not a list of integers but str"]),
        ("a.jsonl", good('{"input_ids": [1, -1]}'), ["a.jsonl, line 2", "entry 1", "-1"]),
        ("a.jsonl", good('{"input_ids": [1, 2147483648]}'), ["a.jsonl, line 2", "entry 1"]),
        ("a.jsonl", good('{"input_ids": [1.5]}'), ["a.jsonl, line 2", "entry 0"]),
        ("a.jsonl", good('{"input_ids": [true]}'), ["a.jsonl, line 2", "entry 0"]),
        ("a.jsonl", good('{"messages": "hello"}'), ["a.jsonl, line 2", "'messages'", "str"]),
        ("a.jsonl", good('{"messages": ["hello"]}'), ["a.jsonl, line 2", "entry 0", "'role'"]),
        ("a.jsonl", good('{"messages": [{"content": "x"}]}'), ["a.jsonl, line 2", "entry 0", "'role'"]),
        ("a.jsonl", good('{"messages": [{"role": "user", "content": 4}]}'), []),
        ("a.jsonl", good('{"text": "w1", "text": "w2"}'), ["a.jsonl, line 2", "the name 'text' is there twice"]),
        ("a.json", '[{"text": "w1", "text": "w2"}]', ["a.json", "the name 'text' is there twice"]),
        ("a.csv", "text,id,text\nw1,1,w2\n", ["a.csv", "names the column text twice"]),
        ("a.jsonl", "", ["a.jsonl", "no rows"]),
        ("a.jsonl", "\n \n", ["a.jsonl", "no rows"]),
        ("a.jsonl", '{"text": ""}\n{"text": " "}\n', ["a.jsonl", "all 2 rows are empty"]),
        ("a.json", "", ["a.json, line 1", "not JSON"]),
        ("a.json", '[{"text": "a"},\n{"text": }]', ["a.json, line 2", "not JSON"]),
        ("a.json", b'[{"text": "\xfe"}]', ["a.json", "byte 12", "UTF-8"]),
        ("a.json", "[" * 100_000, ["a.json", "not JSON"]),
        ("a.json", '[{"text": "w1"}, 7]', ["a.json, row 2", "int, not an object"]),
        ("a.json", '"text"', ["a.json", "neither a list"]),
        ("a.json", '{"text": ["a", "b"], "id": [1]}', ["a.json", "different lengths", "'text' 2", "'id' 1"]),
        ("a.json", "[]", ["a.json", "no rows"]),
        ("a.csv", "", ["a.csv", "empty", "name the columns"]),
        ("a.csv", "text\n", ["a.csv", "no rows"]),
        ("a.csv", "id,body\n1,x\n", ["a.csv", "'id', 'body'", "--text-column"]),
        ("a.csv", 'id,text\n1,"w1\nw2"\n2,a,b\n', ["a.csv, line 4", "3 fields", "names 2"]),
        ("a.csv", 'text\nw1\n"never closed\n', ["a.csv, line 3", "not CSV"]),
        ("a.csv", b"text\nw1\n\xff\n", ["a.csv, line 3", "byte 1", "UTF-8"]),
        ("a.parquet", "PAR1 is not enough", ["a.parquet", "not a readable Parquet file"]),
        ("a.parquet", "", ["a.parquet", "not a readable Parquet file"]),
        ("a.txt", "", ["a.txt", "no rows"]),
        ("a.txt", b"w1\n\nw2\nw3 \xe4\n", ["a.txt, line 4", "byte 4", "UTF-8"]),
        ("a.tsv", "text\nw1\n", ["a.tsv", "'.tsv'", ".jsonl .json .csv .parquet .txt"]),
    ],
)
def test_faulty_file(fails, prepare, file, name, content, fragments):
    if not fragments:  # transformers' templates print any content; so it is no fault
        return check_number_as_content(prepare, file(name, content))
    fails(*fragments, dataset=file(name, content))


def check_number_as_content(prepare, path):
    assert prepare(dataset=path).samples == [[1], [0]]


def test_faults_are_found_in_shuffled_rows_too(fails, file):
    fails("a.jsonl, line 4", dataset=file("a.jsonl", good("", '{"text": "w2"}', "?")), shuffle=True)


def test_missing_column_in_parquet_and_saved_dataset(fails, tmp_path):
    import datasets
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table({"body": ["x"], "id": [1]}), tmp_path / "a.parquet")
    fails("a.parquet", "'body', 'id'", "--text-column", dataset=tmp_path / "a.parquet")
    datasets.Dataset.from_dict({"body": ["x"]}).save_to_disk(tmp_path / "saved")
    fails("saved", "'body'", "--text-column", dataset=tmp_path / "saved")


def test_truncated_parquet(fails, tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": ["w1 " * 1000] * 100}), path, compression="zstd")
    whole = bytearray(path.read_bytes())
    middle = len(whole) // 3
    whole[4:middle] = bytes(middle - 4)
    path.write_bytes(whole)
    fails("a.parquet", "not a readable Parquet file", dataset=path)


def test_missing_and_unreadable_files(fails, tmp_path, monkeypatch):
    fails("none.jsonl", "no such file", dataset=tmp_path / "none.jsonl")
    from pathlib import Path

    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied")

    (tmp_path / "secret.txt").write_text("w1")
    monkeypatch.setattr(Path, "open", refuse)
    fails("secret.txt", "Permission denied", dataset=tmp_path / "secret.txt")


def test_datasets_that_cannot_be_opened(fails, tmp_path):
    fails("'no-such-owner/no-such-name'", "cannot be opened", "local cache", dataset="no-such-owner/no-such-name")
    (tmp_path / "empty").mkdir()
    fails("empty", "cannot be opened", dataset=tmp_path / "empty")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "a.json").write_text("x")
    fails("other", "cannot be opened", "JSON parse error", dataset=tmp_path / "other")
    import datasets

    table = datasets.Dataset.from_dict({"text": ["w1"]})
    datasets.DatasetDict(train=table, validation=table).save_to_disk(tmp_path / "saved")
    fails("no split 'test'", "train, validation", dataset=tmp_path / "saved", split="test")


@pytest.mark.parametrize(
    "split", ["train[", "train[10%%:20%]", "train[1:2:3]", "train[-:3]", "a[1:2]+b[3:4]", "train[3]"]
)
def test_split_not_understood(fails, file, split):
    fails(f"'{split}'", "train[10:50]", dataset=file("a.jsonl", good()), split=split)


def test_compressed_file(fails, file):
    fails("rows.jsonl.gz", "unpack it", dataset=file("rows.jsonl.gz", good()))


def test_slice_without_rows(fails, file):
    fails("train[5:9]", "no rows", dataset=file("a.jsonl", good()), split="train[5:9]")
    fails("train[3:1]", "no rows", dataset=file("a.jsonl", good()), split="train[3:1]")


def test_too_few_tokens_to_concatenate(fails, file):
    fails("fewer than max_seq_length = 8", dataset=file("a.jsonl", good()), concatenate=True, max_seq_length=8)


@pytest.mark.parametrize(
    "fields, fragments",
    [
        ({"num_samples": 0}, ["'num_samples' is 0", "between 1 and"]),
        ({"max_seq_length": -1}, ["'max_seq_length' is -1"]),
        ({"seed": 2**64}, ["'seed'"]),
        ({"seed": -1}, ["'seed'"]),
        ({"shuffle": 1}, ["'shuffle'", "bool", "int"]),
        ({"num_samples": True}, ["'num_samples'", "int", "bool"]),
        ({"num_samples": 1.5}, ["'num_samples'", "float"]),
        ({"text_column": None}, ["'text_column'", "NoneType"]),
        ({"dataset": ""}, ["'dataset' is empty"]),
        ({"sample_count": 3}, ["unknown request field 'sample_count'", "num_samples"]),
        ({"model": "/nowhere/at/all"}, ["'/nowhere/at/all' is not a directory"]),
    ],
)
def test_faulty_request(fails, file, fields, fragments):
    fails(*fragments, **{"dataset": file("a.jsonl", good()), **fields})


def test_request_without_an_output():
    from layerpress_data.errors import DataError
    from layerpress_data.request import parse_request

    with pytest.raises(DataError, match="lacks 'output'"):
        parse_request({"model": "m", "dataset": "d"})


def test_no_chat_template(fails, file, tmp_path):
    model = tiny_checkpoints.save(tmp_path / "model", "byte_level")
    rows = file("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n')
    fails("model", "no chat template", "chat_template.jinja", dataset=rows, model=model)


def test_template_fault_names_the_line(fails, file, tmp_path):
    template = "{{ raise_exception('roles must alternate\nstrictly') }}"
    model = tiny_checkpoints.save(tmp_path / "model", "byte_level", files={"chat_template.jinja": template})
    rows = file("a.jsonl", '\n{"messages": [{"role": "user", "content": "x"}]}\n')
    fails("a.jsonl, line 2", "roles must alternate strictly", dataset=rows, model=model)


@pytest.mark.parametrize("content", ["", "{}", '{"model": {"type": "BPE"}}', '{"version": "1.0", "model": 3}'])
def test_broken_tokenizer(fails, file, tmp_path, content):
    model = tiny_checkpoints.save(tmp_path / "model", "byte_level", files={"tokenizer.json": content})
    fails("tokenizer.json", "cannot be loaded", dataset=file("a.jsonl", good()), model=model)


@pytest.mark.parametrize("content", ["", "[]", "{", b"\xff".decode("latin-1") + "{"])
@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json", "special_tokens_map.json"])
def test_broken_settings(fails, file, tmp_path, name, content):
    model = tiny_checkpoints.save(tmp_path / "model", "byte_level", files={name: content})
    fails(name, "JSON", "restore", dataset=file("a.jsonl", good()), model=model)


@pytest.mark.parametrize(
    "settings",
    [
        {"added_tokens_decoder": {"x": {"content": "a"}}},
        {"added_tokens_decoder": {"1": "a"}},
        {"eos_token": 3},
        {"truncation_side": "middle"},
        {"extra_special_tokens": [{"content": "a"}]},
    ],
)
def test_malformed_tokenizer_settings(fails, file, tmp_path, settings):
    model = tiny_checkpoints.save(tmp_path / "model", "byte_level", settings=settings)
    fails("model", "no tokenizer can be loaded", dataset=file("a.jsonl", good()), model=model)


def test_checkpoint_without_tokenizer(fails, file, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "llama"}))
    fails("model", "no tokenizer can be loaded", dataset=file("a.jsonl", good()), model=tmp_path / "model")


def test_tokenizer_without_vocabulary(fails, file, tmp_path):
    """Of which transformers makes one with special tokens only."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>"}
    (tmp_path / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    fails("model", "no tokenizer can be loaded (its vocabulary is missing)", dataset=file("a.jsonl", good()), model=tmp_path / "model")


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_length_shorter_than_the_special_tokens(fails, prepare, file, tmp_path, model_type):
    model = tiny_checkpoints.save(tmp_path / "model", "wordpiece", model_type)
    rows = file("a.jsonl", good())
    fails("adds 2 special tokens", "max_seq_length = 1", dataset=rows, model=model, max_seq_length=1)
    assert [len(sample) for sample in prepare(dataset=rows, model=model, max_seq_length=2).samples] == [2]


@pytest.mark.parametrize(
    "package, dataset",
    [("tokenizers", "a.jsonl"), ("jinja2", "chat.jsonl"), ("pyarrow", "a.parquet"), ("datasets", "owner/name")],
)
def test_missing_package(fails, file, monkeypatch, package, dataset):
    file("a.jsonl", good())
    file("a.parquet", "")
    chat = file("chat.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n')
    for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    path = chat.parent / dataset
    fails(f"pip install {package}", dataset=path if path.exists() else dataset, code=1)


def test_output_that_cannot_be_written(prepare, file, tmp_path):
    outcome = prepare(dataset=file("a.jsonl", good()), output=tmp_path / "nowhere" / "x.safetensors")
    assert outcome.code == 1
    assert "cannot write the token file" in outcome.error and outcome.error.count("\n") == 1


def test_full_disk_leaves_the_previous_file(prepare, file, monkeypatch):
    from layerpress_data import token_file

    path = file("a.jsonl", good())
    outcome = prepare(dataset=path)
    before = outcome.token_file.read_bytes()

    def fail(name, tensors, metadata, spool):
        with open(name, "wb") as handle:
            handle.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(token_file, "save_tensors", fail)
    outcome = prepare(dataset=path)
    assert outcome.code == 1
    assert "No space left on device" in outcome.error
    assert os.listdir(outcome.token_file.parent) == [outcome.token_file.name]
    assert outcome.token_file.read_bytes() == before


def test_unforeseen_fault_is_one_line_too(fails, file, monkeypatch):
    from layerpress_data import samples

    def fail(*_):
        raise RuntimeError("several\nlines")

    monkeypatch.setattr(samples, "collect_samples", fail)
    fails("RuntimeError at test_bad_input.py:", "several lines", dataset=file("a.jsonl", good()), code=1)
