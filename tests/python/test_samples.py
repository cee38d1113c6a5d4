"""Which samples are taken, and how long they are."""

import json

import datasets
import pytest
from layerpress_data.order import shuffled_order, splitmix64
from layerpress_data.split import Split, parse_split


@pytest.fixture
def rows(tmp_path):
    def write(*texts):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    return write


def words(*numbers):
    return " ".join(f"w{number}" for number in numbers)


def test_splitmix64_known_values():
    # The first values of the reference implementation in C for these seeds.
    assert [f"{value:016x}" for value, _ in zip(splitmix64(0), range(3))] == [
        "e220a8397b1dcdaf",
        "6e789e6aa1b965f4",
        "06c45d188009454f",
    ]
    assert [value for value, _ in zip(splitmix64(1234567), range(5))] == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


@pytest.mark.parametrize("count", [0, 1, 2, 10, 1000])
def test_shuffle_follows_its_definition(count):
    expected = list(range(count))
    values = splitmix64(42)
    for i in range(count - 1, 0, -1):
        j = next(values) % (i + 1)
        expected[i], expected[j] = expected[j], expected[i]
    assert list(shuffled_order(count, 42)) == expected


@pytest.mark.parametrize(
    "seed, order",
    [
        (0, [6, 3, 2, 9, 8, 1, 4, 7, 0, 5]),
        (42, [0, 9, 5, 8, 6, 4, 7, 2, 1, 3]),
        (2**64 - 1, [3, 4, 2, 7, 5, 0, 8, 1, 9, 6]),
    ],
)
def test_shuffle_known_orders(seed, order):
    # Computed by a program in C, whose 64-bit arithmetic needs no masks.
    assert list(shuffled_order(10, seed)) == order


def test_first_samples_in_order(prepare, rows):
    path = rows(*(words(i) for i in range(1, 90)))
    outcome = prepare(dataset=path, num_samples=70)
    assert outcome.samples == [[i] for i in range(1, 71)]
    assert outcome.summary == {"samples": 70, "tokens": 70, "skipped_empty": 0, "requested": 70}


def test_long_samples_are_cut(prepare, rows):
    assert prepare(dataset=rows(words(1, 2, 3), words(4)), max_seq_length=2).samples == [[1, 2], [4]]


def test_token_ids_are_cut_and_used_as_they_are(prepare, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"input_ids": [5, 2147483647, 0]}\n{"input_ids": []}\n{"input_ids": [6]}\n')
    outcome = prepare(dataset=path, max_seq_length=2)
    assert outcome.samples == [[5, 2147483647], [6]]
    assert outcome.summary["skipped_empty"] == 1


PADDED = {"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}


def test_padding_is_left_out(prepare, fails, tmp_path):
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(PADDED) + "\n")
    pyarrow.parquet.write_table(pyarrow.table({name: [column] for name, column in PADDED.items()}), tmp_path / "rows.parquet")
    for file in (path, tmp_path / "rows.parquet"):
        assert prepare(dataset=file).samples == [[5, 6]]
    path.write_text(json.dumps({**PADDED, "loss_mask": [0, 1, 1]}) + "\n")
    assert prepare(dataset=path, use_loss_mask=True).samples == [[5, 6]]
    path.write_text(json.dumps({**PADDED, "attention_mask": [1, 0]}) + "\n")
    (tmp_path / "out" / "samples.safetensors").unlink()
    fails("line 1", "'attention_mask'", "3 token ids", dataset=path)


@pytest.mark.parametrize("positions, counts", [([0, 1, 2], True), ([0, 1, 1], True), ([0, 2, 4], False), ([0, 0, 1, 5], False), (7, False)])
def test_positions_count_from_0(positions, counts, prepare, fails, tmp_path):
    """Packed rows, and others whose positions nothing reads, are refused; padding has any."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({**PADDED, "position_ids": positions}) + "\n")
    if counts:
        assert prepare(dataset=path).samples == [[5, 6]]
    else:
        fails("line 1", "'position_ids'", "from 0", dataset=path)


def test_a_text_column_that_the_user_names_must_be_there(prepare, fails, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"messages": [{"role": "user", "content": "w1"}], "prompt": "w2"}\n')
    assert prepare(dataset=path, text_column="prompt").samples == [[2]]
    (tmp_path / "out" / "samples.safetensors").unlink()
    fails("no column 'promt'", "'messages', 'prompt'", dataset=path, text_column="promt")


def test_empty_rows_are_replaced_by_the_next(prepare, rows):
    outcome = prepare(dataset=rows("", words(1), "  ", words(2), "", words(3), "", words(4)), num_samples=3)
    assert outcome.samples == [[1], [2], [3]]
    assert outcome.summary == {"samples": 3, "tokens": 3, "skipped_empty": 3, "requested": 3}


def test_empty_text_is_skipped_although_the_tokenizer_adds_a_token(prepare, rows, tmp_path):
    from support import tiny_checkpoints

    model = tiny_checkpoints.save(tmp_path / "model", "metaspace_bpe")
    outcome = prepare(model=model, dataset=rows("", "boot"))
    assert (len(outcome.samples), outcome.summary["skipped_empty"]) == (1, 1)


def test_fewer_rows_than_requested(prepare, rows):
    outcome = prepare(dataset=rows(words(1), words(2)), num_samples=5)
    assert outcome.summary == {"samples": 2, "tokens": 2, "skipped_empty": 0, "requested": 5}


def test_concatenated_stream(prepare, rows):
    path = rows(words(1, 2, 3), "", words(4), words(5, 6, 7, 8, 9), words(10, 11, 12, 13))
    outcome = prepare(dataset=path, concatenate=True, max_seq_length=4)
    assert outcome.samples == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]]
    assert outcome.summary == {"samples": 3, "tokens": 12, "skipped_empty": 1, "requested": 512}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_concatenated_count(prepare, rows, count):
    path = rows(*(words(i, i + 1) for i in range(1, 80, 2)))
    outcome = prepare(dataset=path, concatenate=True, max_seq_length=5, num_samples=count)
    assert outcome.samples == [list(range(1 + 5 * i, 6 + 5 * i)) for i in range(count)]


@pytest.mark.parametrize("concatenate", [False, True])
def test_rows_that_are_not_needed_are_not_read(prepare, rows, concatenate):
    path = rows(*(words(i, i + 1) for i in range(1, 9, 2)))
    with path.open("a") as handle:
        handle.write("this is not JSON\n")
    outcome = prepare(dataset=path, num_samples=4, max_seq_length=2, concatenate=concatenate)
    assert outcome.samples == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert prepare(dataset=path, num_samples=5, max_seq_length=2, concatenate=concatenate).code == 2


def test_concatenation_tokenizes_no_row_too_many(words):
    from layerpress_data.content import Content, Kind
    from layerpress_data.request import Request
    from layerpress_data.samples import _concatenated

    taken = []

    def contents():
        for i in range(1000):
            taken.append(i)
            yield Content(f"row {i}", Kind.TOKEN_IDS, [1] * 10)

    request = Request(model="m", dataset="d", output="o", num_samples=30, max_seq_length=100, concatenate=True)
    samples = _concatenated(contents(), None, request)
    assert (len(samples.tokens), len(taken)) == (30, 300)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("train", Split("train")),
        ("", Split("")),
        ("test_sft[10:50]", Split("test_sft", "10", "50")),
        ("train[:7]", Split("train", None, "7")),
        ("train[7:]", Split("train", "7", None)),
        ("train[-7:-1]", Split("train", "-7", "-1")),
        ("train[10%:-5%]", Split("train", "10%", "-5%")),
        ("train[:]", Split("train")),
    ],
)
def test_split(text, expected):
    assert parse_split(text) == expected


@pytest.mark.parametrize("text", ["train[10%:20%]", "train[10:20%]", "train[10%:20]", "train[-20%:]", "train[:33%]", "train[5:-3]"])
def test_slices_are_those_of_datasets(text):
    (expected,) = datasets.ReadInstruction.from_spec(text).to_absolute({"train": 53})
    rows = parse_split(text).rows(53)
    assert (rows.start, rows.stop) == (expected.from_, expected.to)
