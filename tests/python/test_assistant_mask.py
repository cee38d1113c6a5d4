"""use_loss_mask: which tokens count, as transformers' assistant mask says, or a column of the rows."""

import json

import pytest
from layerpress_data.checkpoint_tokenizer import CheckpointTokenizer, load_tokenizer
from layerpress_data.transformers_tokenizer import TransformersTokenizer
from safetensors.numpy import load_file
from support import tiny_checkpoints
from support.chat_templates import CONVERSATIONS, TEMPLATES
from transformers import AutoTokenizer

MARKING = {
    "whole turns": TEMPLATES["generation"],
    "inside a turn": (
        "{{ bos_token }}{%- for m in messages -%}<|{{ m.role }}|>\n{%- if m.role == 'assistant' -%}"
        "{%- generation -%}{{ '\n' + m.content | trim + '<|end|>' }}{%- endgeneration -%}{%- else -%}{{ m.content }}"
        "{%- endif -%}\n{% endfor %}"
    ),
    "empty": "{% for m in messages %}{{ m.content }}{% generation %}{% endgeneration %}{% endfor %}",
}


def expected(directory, max_length):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    answers = [
        tokenizer.apply_chat_template(
            messages, return_dict=True, return_assistant_tokens_mask=True, truncation=True, max_length=max_length
        )
        for messages in CONVERSATIONS
    ]
    return [list(answer["input_ids"]) for answer in answers], [list(answer["assistant_masks"]) for answer in answers]


@pytest.mark.parametrize("max_length", [7, 19, 2048])
@pytest.mark.parametrize("kind", ["byte_level", "metaspace_bpe"])
@pytest.mark.parametrize("name", MARKING)
def test_mask_is_that_of_transformers(name, kind, max_length, tmp_path):
    directory = tiny_checkpoints.save(tmp_path, kind, files={"chat_template.jinja": MARKING[name]})
    tokens, masks = expected(directory, max_length)
    known = load_tokenizer(directory)
    assert isinstance(known, CheckpointTokenizer)
    for tokenizer in (known, TransformersTokenizer(directory)):
        rendered = [tokenizer.render_marked(messages, "here") for messages in CONVERSATIONS]
        samples = tokenizer.encode_marked(rendered, max_length)
        assert [list(sample) for sample in samples] == tokens
        assert [sample.mask for sample in samples] == masks
    if name != "empty" and max_length == 2048:
        assert all(0 < sum(mask) < len(mask) for mask in masks)


@pytest.fixture
def marking(tmp_path):
    return tiny_checkpoints.save(tmp_path / "model", "byte_level", files={"chat_template.jinja": MARKING["whole turns"]})


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def masks_of(outcome):
    tensors = load_file(outcome.token_file)
    offsets = tensors["sample_offsets"]
    assert tensors["loss_mask"].shape == tensors["input_ids"].shape
    return [tensors["loss_mask"][a:b].tolist() for a, b in zip(offsets, offsets[1:])]


def test_token_file_carries_the_mask(prepare, marking, tmp_path):
    rows = write(tmp_path / "rows.jsonl", *({"messages": messages} for messages in CONVERSATIONS))
    outcome = prepare(model=marking, dataset=rows, max_seq_length=40, use_loss_mask=True)
    tokens, masks = expected(marking, 40)
    assert outcome.samples == tokens and masks_of(outcome) == masks
    assert "loss_mask" not in load_file(prepare(model=marking, dataset=rows).token_file)


def test_joined_samples(prepare, marking, tmp_path):
    rows = write(tmp_path / "rows.jsonl", *({"messages": messages} for messages in CONVERSATIONS))
    outcome = prepare(model=marking, dataset=rows, max_seq_length=16, concatenate=True, use_loss_mask=True)
    tokens, masks = (sum(parts, []) for parts in expected(marking, 2048))
    count = len(tokens) // 16
    assert outcome.samples == [tokens[16 * i : 16 * i + 16] for i in range(count)]
    assert masks_of(outcome) == [masks[16 * i : 16 * i + 16] for i in range(count)]


def test_column_of_token_rows(prepare, tmp_path):
    rows = write(
        tmp_path / "rows.jsonl",
        {"input_ids": [1, 2, 3, 4], "loss_mask": [0, 1, 1, 0]},
        {"input_ids": [5, 6], "loss_mask": [True, False]},
    )
    outcome = prepare(dataset=rows, max_seq_length=3, use_loss_mask=True)
    assert outcome.samples == [[1, 2, 3], [5, 6]] and masks_of(outcome) == [[0, 1, 1], [1, 0]]


@pytest.mark.parametrize(
    "row, fragments",
    [
        ({"text": "plain"}, ["line 1", "plain text", "messages"]),
        ({"input_ids": [1, 2]}, ["line 1", "loss_mask"]),
        ({"input_ids": [1, 2], "loss_mask": [1]}, ["1 entries for 2"]),
        ({"input_ids": [1, 2], "loss_mask": [1, 2]}, ["entry 1 is '2'"]),
    ],
)
def test_rows_without_a_mask(fails, marking, tmp_path, row, fragments):
    fails(*fragments, model=marking, dataset=write(tmp_path / "rows.jsonl", row), use_loss_mask=True)


def test_template_without_blocks(fails, tmp_path):
    directory = tiny_checkpoints.save(tmp_path / "model", "byte_level", files={"chat_template.jinja": TEMPLATES["chatml"]})
    rows = write(tmp_path / "rows.jsonl", {"messages": CONVERSATIONS[0]})
    fails("no {% generation %} block", str(directory), model=directory, dataset=rows, use_loss_mask=True)
