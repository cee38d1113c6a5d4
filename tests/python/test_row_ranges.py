"""Positions of the selected order, which programs that divide a dataset ask for: together they give the whole."""

import json

import pytest
from test_dataset_files import WRITERS

# With how many rows they take of 40.
SPLITS = {"train": 40, "train[3:]": 37, "train[2:31]": 29, "train[-17:-2]": 15, "train[10%:-20%]": 28, "train[:-35]": 5,
          "train[38:100]": 2, "train[20:20]": 0}


@pytest.fixture
def rows(tmp_path):
    def write(*texts, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    return write


def words(*numbers):
    return " ".join(f"w{number}" for number in numbers)


def parts(prepare, count, programs, **fields):
    """What `programs` programs get that divide the first `count` positions, one after the other."""
    bounds = [count * i // programs for i in range(programs + 1)]
    return [
        (outcome.samples, outcome.summary)
        for outcome in (prepare(rows=list(pair), **fields) for pair in zip(bounds, bounds[1:]))
    ]


def joined(pieces):
    return [sample for samples, _ in pieces for sample in samples]


@pytest.mark.parametrize("programs", [1, 3, 8])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("split", SPLITS)
def test_parts_are_the_whole(prepare, rows, split, shuffle, programs):
    texts = ["" if i % 7 == 3 else words(*range(i, i + 1 + i % 4)) for i in range(1, 41)]
    fields = {"dataset": rows(*texts), "split": split, "shuffle": shuffle, "seed": 5, "max_seq_length": 3}
    pieces = parts(prepare, 50, programs, **fields)
    whole = prepare(**fields)
    if split == "train[20:20]":
        assert whole.code == 2
        assert joined(pieces) == [] and all(summary["rows"] == 0 for _, summary in pieces)
        return
    assert joined(pieces) == whole.samples
    for key in ("samples", "tokens", "skipped_empty"):
        assert sum(summary[key] for _, summary in pieces) == whole.summary[key]
    assert sum(summary["rows"] for _, summary in pieces) == SPLITS[split]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_type_of_dataset(prepare, tmp_path, monkeypatch, name, shuffle):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / name
    WRITERS[name](path)
    fields = {"dataset": path, "shuffle": shuffle, "seed": 3, "split": "train[1:39]"}
    whole = prepare(**fields).samples
    assert joined(parts(prepare, 45, 4, **fields)) == whole
    middle = prepare(**fields, rows=[10, 13])
    assert middle.samples == whole[10:13]
    assert middle.summary == {"samples": 3, "tokens": 9, "skipped_empty": 0, "rows": 3}


def test_empty_rows_are_counted_and_not_replaced(prepare, rows):
    outcome = prepare(dataset=rows("", words(1), " ", "", words(2), ""), rows=[1, 5], num_samples=1)
    assert outcome.samples == [[1], [2]]
    assert outcome.summary == {"samples": 2, "tokens": 2, "skipped_empty": 2, "rows": 4}


def test_more_rows_than_tokenized_at_once(prepare, rows):
    path = rows(*(words(i % 97) if i % 2 else "" for i in range(300)))
    outcome = prepare(dataset=path, rows=[10, 290], num_samples=1)
    assert outcome.samples == [[i % 97] for i in range(11, 290, 2)]
    assert outcome.summary == {"samples": 140, "tokens": 140, "skipped_empty": 140, "rows": 280}


@pytest.mark.parametrize("bounds", [[0, 0], [3, 3], [3, 9], [2**62, 2**62], [0, 2]])
def test_no_samples_are_no_failure(prepare, rows, bounds):
    outcome = prepare(dataset=rows("", " ", ""), rows=bounds)
    assert (outcome.code, outcome.samples) == (0, [])
    existing = len(range(3)[bounds[0] : bounds[1]])
    assert outcome.summary == {"samples": 0, "tokens": 0, "skipped_empty": existing, "rows": existing}


def test_long_rows_are_cut_unless_told_otherwise(prepare, rows, tmp_path):
    path = rows(words(1, 2, 3), words(4), words(5, 6, 7))
    assert prepare(dataset=path, max_seq_length=2, rows=[0, 2]).samples == [[1, 2], [4]]
    assert prepare(dataset=path, max_seq_length=2, rows=[0, 2], uncut=True).samples == [[1, 2, 3], [4]]
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"input_ids": [8, 9, 10]}\n')
    assert prepare(dataset=ids, max_seq_length=2, rows=[0, 1], uncut=True).samples == [[8, 9, 10]]


@pytest.mark.parametrize("length", [1, 4, 7])
def test_uncut_parts_make_the_concatenated_stream(prepare, rows, length):
    path = rows(*("" if i % 5 == 2 else words(*range(i, i + 1 + i % 6)) for i in range(1, 60)))
    for shuffle in (False, True):
        fields = {"dataset": path, "shuffle": shuffle, "split": "train[4:]", "max_seq_length": length}
        stream = [token for sample in joined(parts(prepare, 60, 3, uncut=True, **fields)) for token in sample]
        whole = prepare(concatenate=True, **fields).samples
        assert [stream[i * length : (i + 1) * length] for i in range(len(stream) // length)] == whole


def test_only_the_rows_asked_for_must_be_well_formed(prepare, fails, rows):
    path = rows(words(1), words(2))
    with path.open("a") as handle:
        handle.write('broken\n{"text": "w3"}\n')
    assert prepare(dataset=path, rows=[0, 2]).samples == [[1], [2]]
    assert prepare(dataset=path, rows=[3, 9]).samples == [[3]]
    outcome = prepare(dataset=path, rows=[1, 4])
    assert outcome.code == 2 and "rows.jsonl, line 3" in outcome.error and "not JSON" in outcome.error


@pytest.mark.parametrize(
    "fields, fragments",
    [
        ({"rows": [1]}, ["'rows'", "[1]", "[first, last]"]),
        ({"rows": [1, 2, 3]}, ["'rows'", "[first, last]"]),
        ({"rows": [3, 2]}, ["'rows'", "0 <= first <= last"]),
        ({"rows": [-1, 2]}, ["'rows'", "0 <= first <= last"]),
        ({"rows": [0, 2**62 + 1]}, ["'rows'"]),
        ({"rows": [0, 1.5]}, ["'rows'"]),
        ({"rows": [False, True]}, ["'rows'"]),
        ({"rows": "0:3"}, ["'rows'"]),
        ({"rows": 3}, ["'rows'"]),
        ({"uncut": True}, ["'uncut'", "concatenate"]),
        ({"rows": [0, 1], "concatenate": True}, ["'rows' and 'concatenate'", "uncut"]),
        ({"rows": [0, 1], "uncut": 1}, ["'uncut'", "bool"]),
    ],
)
def test_faulty_requests(fails, rows, fields, fragments):
    fails(*fragments, dataset=rows(words(1)), **fields)


def test_null_is_no_range(prepare, rows):
    outcome = prepare(dataset=rows(words(1), words(2)), rows=None, num_samples=1)
    assert outcome.summary == {"samples": 1, "tokens": 1, "skipped_empty": 0, "requested": 1}
