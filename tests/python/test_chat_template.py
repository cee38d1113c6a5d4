"""Conversations: rendered and tokenized as transformers' apply_chat_template does."""

import json

import pytest
from layerpress_data import rendering_limits
from layerpress_data.checkpoint_tokenizer import CheckpointTokenizer, load_tokenizer
from layerpress_data.content import Conversation
from layerpress_data.errors import DataError
from support import tiny_checkpoints
from support.chat_templates import CONVERSATIONS, TEMPLATES
from transformers import AutoTokenizer


def reference_texts(directory):
    tokenizer = AutoTokenizer.from_pretrained(directory)
    return [tokenizer.apply_chat_template(messages, tokenize=False) for messages in CONVERSATIONS]


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_renders_as_in_transformers(name, tmp_path):
    settings = {"pad_token": "<extra>", "image_token": "<image>"}
    files = {"chat_template.jinja": TEMPLATES[name]}
    directory = tiny_checkpoints.save(tmp_path, "byte_level", settings=settings, files=files)
    tokenizer = load_tokenizer(directory)
    assert isinstance(tokenizer, CheckpointTokenizer)
    texts = [tokenizer.render(messages, "here") for messages in CONVERSATIONS]
    assert texts == reference_texts(directory)
    assert all(texts)


PARTS = [{"role": role, "content": [{"type": "text", "text": f"{role} & "}, {"type": "text", "text": "more"}]}
         for role in ("system", "user", "assistant")]
BY_PART = "{% for part in message['content'] | selectattr('type', 'equalto', 'text') %}{{ part['text'] }}{% endfor %}"


@pytest.mark.parametrize("body, joined_roles", [
    (BY_PART, []),
    ("{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}{% endif %}{% endfor %}", []),
    ("{% if message.content is string %}{{ message.content }}{% else %}" + BY_PART + "{% endif %}", []),
    ("{{ message['content'] }}", ["system", "user", "assistant"]),
    ("{{ message['content'] | tojson }}", ["system", "user", "assistant"]),
    ("{% if message.content is string %}{{ message.content }}{% endif %}", ["system", "user", "assistant"]),
    ("{% if message.role == 'assistant' %}{{ message.content | trim }}{% else %}" + BY_PART + "{% endif %}", ["assistant"]),
    ("{% if message.role == 'system' %}{{ message.content }}{% else %}" + BY_PART + "{% endif %}", ["system"]),
])
def test_parts_of_text(body, joined_roles, tmp_path):
    """A template that shows them gets them, as in transformers; one that prints a list, or nothing of it, gets their text."""
    template = ("{% if messages[0].role == 'assistant' %}{{ raise_exception('first') }}{% endif %}"
                "{% for message in messages %}<{{ message.role }}>" + body + "{% endfor %}")
    directory = tiny_checkpoints.save(tmp_path, "byte_level", files={"chat_template.jinja": template})
    wanted = [{**message, "content": "".join(part["text"] for part in message["content"])} if message["role"] in joined_roles else message
              for message in PARTS]
    expected = AutoTokenizer.from_pretrained(directory).apply_chat_template(wanted, tokenize=False)
    assert load_tokenizer(directory).render(Conversation(PARTS), "here") == expected and "user & more" in expected


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "settings, files",
    [
        ({"chat_template": "one {{ messages | length }}"}, {}),
        ({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]}, {}),
        ({"chat_template": "config"}, {"chat_template.jinja": "file\r\nlines\n"}),
        ({}, {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"}),
    ],
)
def test_template_is_found_where_transformers_finds_it(settings, files, model_type, tmp_path):
    directory = tiny_checkpoints.save(tmp_path, "byte_level", model_type, settings, files)
    tokenizer = load_tokenizer(directory)
    assert [tokenizer.render(messages, "here") for messages in CONVERSATIONS] == reference_texts(directory)


def test_template_of_the_processor_is_the_last_resort(tmp_path):
    template = {"chat_template": "{{ messages[0].content }}!"}
    directory = tiny_checkpoints.save(tmp_path, "byte_level", files={"chat_template.json": template})
    assert load_tokenizer(directory).render(CONVERSATIONS[0], "here") == "Is 1 < 2 & 'true'?!"
    (directory / "chat_template.jinja").write_text("preferred")
    assert load_tokenizer(directory).render(CONVERSATIONS[0], "here") == "preferred"


@pytest.mark.parametrize(
    "template, fragment",
    [
        ("{% for m in messages %}", "line 1"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].absent.deeper }}", "UndefinedError"),
        ("{{ messages[0].content + 3 }}", "TypeError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ '\\ud800' }}", "UnicodeEncodeError"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "it takes more than"),
        ("{{ 'a' * 99999999999 }}", "MemoryError"),
        ("{{ '%9999999999d' % messages|length }}", "MemoryError"),
        ("{% for a in range(99999) %}{{ 'a' * 9999 }}{% endfor %}", "64 million characters"),
        ("{{ 9 ** 99999 }}", "4096 bits"),
        ("{% set n = namespace(x=9) %}{% for a in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}", "4096 bits"),
    ],
)
def test_template_faults_name_the_row(template, fragment, tmp_path, monkeypatch):
    monkeypatch.setattr(rendering_limits, "MOST_SECONDS", 0.5)
    directory = tiny_checkpoints.save(tmp_path, "byte_level", files={"chat_template.jinja": template})
    with pytest.raises(DataError) as fault:
        load_tokenizer(directory).render(CONVERSATIONS[0], "rows.jsonl, line 7")
    assert fragment in str(fault.value)
    assert str(directory) in str(fault.value)
    assert "rows.jsonl, line 7" in str(fault.value) or "line 1" in fragment


@pytest.mark.parametrize("template", ["{{ '%9999999999d' % 1 }}", "{{ 'a'|center(9999999999) }}", "{{ " + "(" * 20000 + ")" * 20000 + " }}"])
def test_constants_of_a_template_are_limited(template, tmp_path):
    directory = tiny_checkpoints.save(tmp_path, "byte_level", files={"chat_template.jinja": template})
    with pytest.raises(DataError, match="chat template"):
        load_tokenizer(directory).render(CONVERSATIONS[0], "rows.jsonl, line 7")


def test_several_templates_without_default(tmp_path):
    settings = {"chat_template": [{"name": "rag", "template": "r"}, {"name": "tool_use", "template": "t"}]}
    directory = tiny_checkpoints.save(tmp_path, "byte_level", settings=settings)
    with pytest.raises(DataError, match=r"rag, tool_use.*'default'"):
        load_tokenizer(directory).render(CONVERSATIONS[0], "here")


@pytest.mark.parametrize("max_length", [9, 2048])
def test_real_checkpoint_conversations(real_checkpoint, prepare, tmp_path, max_length):
    reference = AutoTokenizer.from_pretrained(real_checkpoint)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in CONVERSATIONS))
    outcome = prepare(model=real_checkpoint, dataset=rows, max_seq_length=max_length)
    expected = [
        reference.apply_chat_template(m, truncation=True, max_length=max_length, return_dict=False)
        for m in CONVERSATIONS
    ]
    assert outcome.samples == expected


def test_conversation_gets_no_special_tokens(prepare, tmp_path):
    files = {"chat_template.jinja": "{{ messages[0].content }}"}
    directory = tiny_checkpoints.save(tmp_path / "model", "metaspace_bpe", files=files)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": [{"role": "user", "content": "boot"}]}\n{"text": "boot"}\n')
    conversation, text = prepare(model=directory, dataset=rows).samples
    assert text == [1, *conversation]


TOOLS = [{"type": "function", "function": {"name": "find", "description": "Finds façades.", "parameters": {
    "type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}}}]
WITH_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{{ messages[0].content }}"


@pytest.mark.parametrize("stored", [TOOLS, json.dumps(TOOLS)], ids=["objects", "text"])
@pytest.mark.parametrize("names", [("default",), ("default", "tool_use")])
def test_tools_of_a_row_reach_the_template(stored, names, prepare, tmp_path):
    settings = {"chat_template": [{"name": name, "template": f"{name} {WITH_TOOLS}"} for name in names]}
    directory = tiny_checkpoints.save(tmp_path / "model", "byte_level", settings=settings)
    rows = tmp_path / "rows.jsonl"
    conversation = {"messages": CONVERSATIONS[0]}
    rows.write_text("".join(json.dumps(row) + "\n" for row in ({**conversation, "tools": stored}, {**conversation, "tools": []})))
    reference = AutoTokenizer.from_pretrained(directory)
    assert prepare(model=directory, dataset=rows).samples == [
        reference.apply_chat_template(CONVERSATIONS[0], tools=tools, return_dict=False) for tools in (TOOLS, None)
    ]


@pytest.mark.parametrize("tools", ["find", [1], {"name": "find"}])
def test_tools_that_are_no_schemas_are_refused(tools, fails, tmp_path):
    directory = tiny_checkpoints.save(tmp_path / "model", "byte_level", files={"chat_template.jinja": WITH_TOOLS})
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": CONVERSATIONS[0], "tools": tools}) + "\n")
    fails("line 1: 'tools' is not a list of objects", model=directory, dataset=rows)
