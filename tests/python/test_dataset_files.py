"""Every type of dataset gives the same samples for the same rows."""

import csv
import json

import pytest
from layerpress_data.content import row_content

ROWS = [{"text": f"w{i} w{i + 1}\nw{i + 2}", "other": i} for i in range(1, 41)]
EXPECTED = [[i, i + 1, i + 2] for i in range(1, 41)]


def write_jsonl(path):
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))


def write_jsonl_odd(path):
    """Byte order mark, blank lines, Windows line ends, no line end at the end of the file."""
    lines = [json.dumps(row).encode() for row in ROWS]
    path.write_bytes(b"\xef\xbb\xbf\r\n" + b"\r\n\n".join(lines))


def write_json(path):
    path.write_text(json.dumps(ROWS, indent=1))


def write_json_columns(path):
    path.write_text(json.dumps({name: [row[name] for row in ROWS] for name in ROWS[0]}))


def write_csv(path):
    with path.open("w", newline="", encoding="utf-8-sig") as handle:
        writer = csv.DictWriter(handle, ["other", "text"], quoting=csv.QUOTE_MINIMAL)
        writer.writeheader()
        writer.writerows(ROWS)


def write_parquet(path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=7)


def write_txt(path):
    path.write_text("\n" + "\n \t\n\n".join(row["text"] for row in ROWS))


def write_saved_dataset(path):
    import datasets

    datasets.Dataset.from_list(ROWS).save_to_disk(path)


def write_saved_splits(path):
    import datasets

    table = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict(train=table, test=table.select([0])).save_to_disk(path)


def write_dataset_directory(path):
    path.mkdir()
    write_jsonl(path / "train.jsonl")


WRITERS = {
    "rows.jsonl": write_jsonl,
    "odd.jsonl": write_jsonl_odd,
    "rows.json": write_json,
    "columns.json": write_json_columns,
    "lines.json": write_jsonl,
    "rows.csv": write_csv,
    "rows.PARQUET": write_parquet,
    "rows.txt": write_txt,
    "saved": write_saved_dataset,
    "splits": write_saved_splits,
    "directory": write_dataset_directory,
}


@pytest.fixture(params=WRITERS)
def dataset(request, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = tmp_path / request.param
    WRITERS[request.param](path)
    return path


def test_all_rows(prepare, dataset):
    outcome = prepare(dataset=dataset)
    assert outcome.samples == EXPECTED
    assert outcome.summary == {"samples": 40, "tokens": 120, "skipped_empty": 0, "requested": 512}


@pytest.mark.parametrize(
    "split, rows",
    [
        ("train[10:15]", slice(10, 15)),
        ("train[38:]", slice(38, 40)),
        ("train[:3]", slice(0, 3)),
        ("train[-3:]", slice(37, 40)),
        ("train[5:-30]", slice(5, 10)),
        ("train[10%:-50%]", slice(4, 20)),
    ],
)
def test_slices(prepare, dataset, split, rows):
    assert prepare(dataset=dataset, split=split).samples == EXPECTED[rows]


def test_shuffled_slice(prepare, dataset):
    from layerpress_data.order import shuffled_order

    order = shuffled_order(25, 7)
    outcome = prepare(dataset=dataset, split="train[10:35]", shuffle=True, seed=7, num_samples=9)
    assert outcome.samples == [EXPECTED[10 + i] for i in order[:9]]


def test_shuffled_whole(prepare, dataset):
    outcome = prepare(dataset=dataset, shuffle=True, seed=1)
    assert outcome.samples != EXPECTED
    assert sorted(outcome.samples) == EXPECTED


def test_id_in_the_local_cache_with_configuration(tmp_path, monkeypatch):
    """An id, and one of its configurations, are passed on to `datasets` as it wants them."""
    import datasets
    from layerpress_data.hub_rows import open_hub_dataset
    from layerpress_data.request import Request

    calls = []

    def load_dataset(name, configuration, split):
        calls.append((name, configuration, split))
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    for name in ("owner/name", "owner/name:raw-v1"):
        source, split = open_hub_dataset(Request(model="m", output="o", dataset=name, split="train[:10%]"))
        assert (split.start, split.stop, source.count()) == (None, None, 40)
    assert calls == [("owner/name", None, "train[:10%]"), ("owner/name", "raw-v1", "train[:10%]")]


def test_text_column_and_what_wins(prepare, tmp_path):
    rows = [
        {"prompt": "w1", "text": "w2"},
        {"prompt": "w3", "messages": [{"role": "user", "content": "w4"}]},
        {"prompt": None, "messages": [{"role": "user", "content": "w5"}]},
        {"prompt": "w6", "input_ids": [7, 8]},
        {"prompt": [{"role": "user", "content": "w9"}]},
        {"prompt": None},
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    outcome = prepare(dataset=path, text_column="prompt")
    assert outcome.samples == [[1], [3], [5], [7, 8], [9]]
    assert outcome.summary["skipped_empty"] == 1


def test_parquet_with_conversations_and_token_ids(prepare, tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"messages": [{"role": "user", "content": f"w{i}"}], "input_ids": None} for i in range(1, 4)]
    rows.append({"messages": None, "input_ids": [9, 9]})
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    assert prepare(dataset=path).samples == [[1], [2], [3], [9, 9]]


def test_turns_of_sharegpt(prepare, tmp_path):
    """`from` and `value`, with the roles of a chat template; a text or messages beside them win."""
    turns = [{"from": "system", "value": "w1"}, {"from": "human", "value": "w2"}, {"from": "gpt", "value": "w3"}]
    rows = [{"conversations": turns}, {"conversations": turns, "text": "w4"},
            {"conversations": turns, "messages": [{"role": "user", "content": "w5"}]}]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert prepare(dataset=path).samples == [[1, 2, 3], [4], [5]]
    assert row_content("row 1", rows[0], "text").value == [
        {"role": "system", "content": "w1"}, {"role": "user", "content": "w2"}, {"role": "assistant", "content": "w3"}]


def test_csv_field_longer_than_the_library_expects(prepare, tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("text\n" + '"' + "w7 " * 100_000 + '"\n')
    assert prepare(dataset=path, max_seq_length=3).samples == [[7, 7, 7]]


def test_text_lines_of_a_paragraph_stay_together(prepare, tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(b"w1\r\nw2\r\n\r\n\r\nw3\n\n\n  \nw4\nw5")
    assert prepare(dataset=path).samples == [[1, 2], [3], [4, 5]]
