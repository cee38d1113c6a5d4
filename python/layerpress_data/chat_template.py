"""Chat templates: finds them in a checkpoint and provides the Jinja environment that they expect."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional

from .content import Conversation
from .errors import DataError, MissingPackageError, one_line
from .rendering_limits import MOST_CHARACTERS, TooMuch, limited_rendering, sandbox
from .settings_file import read_json_object


def find_chat_template(directory: Path, with_tools: bool = False) -> str:
    """Returns the source of the default template, or with tools of the one named tool_use where there is one.

    Template files win over tokenizer_config.json; chat_template.json, a processor's file, is the last resort.
    """
    templates = _template_files(directory)
    if not templates:
        for file_name in ("tokenizer_config.json", "chat_template.json"):
            templates = _templates_in(directory / file_name)
            if templates:
                break
    if not templates:
        raise DataError(
            f"{directory}: the checkpoint has no chat template: "
            "add chat_template.jinja or use a dataset with plain text"
        )
    if with_tools and "tool_use" in templates:
        return templates["tool_use"]
    if "default" not in templates:
        names = ", ".join(sorted(templates))
        raise DataError(f"{directory}: several chat templates ({names}) and none named 'default': name one so")
    return templates["default"]


_PROBE = "layerpress-probe"
_FIRST_ROLES = ("system", "developer")


def _texts_of_parts(message: dict) -> Optional[list[str]]:
    """The texts of a message of nothing but parts of text."""
    parts = message.get("content")
    if not isinstance(parts, (list, tuple)) or not parts:
        return None
    texts = [part["text"] for part in parts if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)]
    return texts if len(texts) == len(parts) else None


class Rendered(NamedTuple):
    """A conversation as text, and the parts of it that `{% generation %}` blocks mark: (first, last + 1) character."""

    text: str
    marked: list[tuple[int, int]]


class ChatTemplate:
    """A compiled template."""

    def __init__(self, source: str, directory: Path):
        self._directory = directory
        self._reads_parts: dict[str, bool] = {}  # by role
        self._marks = re.search(r"\{%-?\s*generation\s*-?%\}", source) is not None
        try:
            import jinja2
        except ImportError as fault:
            raise MissingPackageError("jinja2", "the chat template", fault) from None
        try:
            with limited_rendering():  # what is constant is computed now
                self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as fault:
            raise DataError(f"{directory}: chat template, line {fault.lineno}: {one_line(fault.message)}") from None
        except (TooMuch, MemoryError, RecursionError) as fault:
            raise DataError(f"{directory}: the chat template cannot be compiled ({type(fault).__name__}: {one_line(fault)})") from None

    def render(self, messages: Conversation, special_tokens: Mapping[str, str], place: str) -> str:
        """Renders a conversation and its tools without the prompt for another answer."""
        return self._render(messages, special_tokens, place).text

    def render_marked(self, messages: Conversation, special_tokens: Mapping[str, str], place: str) -> Rendered:
        """The same, with the parts that the template marks as the assistant's; refuses a template that marks nothing."""
        if not self._marks:
            raise DataError(
                f"{self._directory}: the chat template has no {{% generation %}} block, so it does not say which tokens are "
                "the assistant's: add such blocks, or pass rows of input_ids with a loss_mask"
            )
        return self._render(messages, special_tokens, place)

    def _render(self, messages: Conversation, special_tokens: Mapping[str, str], place: str) -> Rendered:
        shown = [message if texts is None or self._shows_parts(message["role"], special_tokens) else {**message, "content": "".join(texts)}
                 for message, texts in ((message, _texts_of_parts(message)) for message in messages)]
        return self._render_as_it_is(shown, messages.tools, special_tokens, place)

    def _shows_parts(self, role: str, special_tokens: Mapping[str, str]) -> bool:
        """Whether parts of text in messages of this role come out as their text. Templates of models without images print a list as Python
        does, or nothing."""
        if role not in self._reads_parts:
            message, other = {"role": role, "content": [{"type": "text", "text": _PROBE}]}, {"role": "user", "content": "Hi"}
            try:
                text = self._render_as_it_is([message] if role == "user" else [message, other] if role in _FIRST_ROLES else [other, message],
                                             None, special_tokens, "").text
            except DataError:
                text = ""
            self._reads_parts[role] = _PROBE in text and not any(quote + _PROBE + quote in text for quote in "'\"")
        return self._reads_parts[role]

    def _render_as_it_is(self, messages: list[dict], tools: Any, special_tokens: Mapping[str, str], place: str) -> Rendered:
        variables = {**special_tokens, "messages": messages, "tools": tools, "documents": None}
        blocks: list[str] = []
        marked: list[tuple[int, int]] = []
        self._template.environment.follow(blocks, marked)
        try:
            with limited_rendering():
                characters = 0
                for block in self._template.generate(**variables, add_generation_prompt=False):
                    blocks.append(block)  # one by one: marks are counted from those that are there
                    characters += len(block)
                    if characters > MOST_CHARACTERS:
                        raise TooMuch(f"it makes more than {MOST_CHARACTERS >> 20} million characters")
                text = "".join(blocks)
                text.encode("utf-8")
        except Exception as fault:  # a template can fail in any way that Python can
            raise DataError(
                f"{place}: the chat template of {self._directory} fails "
                f"({type(fault).__name__}: {one_line(fault)}): check the roles and contents of the messages"
            ) from None
        return Rendered(text, marked)


class CheckpointTemplates:
    """The chat templates of a checkpoint, each compiled when the first conversation needs it. `given` is the one that a tokenizer or
    processor has loaded; where it is no text, the checkpoint's files have it."""

    def __init__(self, directory: Path, given: Any = None):
        self._directory = directory
        self._given = given if isinstance(given, str) else None
        self._compiled: dict[bool, ChatTemplate] = {}

    def for_messages(self, messages: Conversation) -> ChatTemplate:
        with_tools = messages.tools is not None
        if with_tools not in self._compiled:
            source = self._given if self._given is not None else find_chat_template(self._directory, with_tools)
            self._compiled[with_tools] = ChatTemplate(source, self._directory)
        return self._compiled[with_tools]


def _template_files(directory: Path) -> dict[str, str]:
    files = {path.stem: path for path in sorted(directory.glob("additional_chat_templates/*.jinja"))}
    if (directory / "chat_template.jinja").is_file():
        files["default"] = directory / "chat_template.jinja"
    try:
        return {name: path.read_text(encoding="utf-8") for name, path in files.items()}
    except (OSError, ValueError) as fault:
        raise DataError(f"{directory}: a chat template file cannot be read ({one_line(fault)})") from None


def _templates_in(path: Path) -> dict[str, str]:
    found = read_json_object(path).get("chat_template")
    if isinstance(found, str):
        found = {"default": found}
    elif isinstance(found, list) and all(isinstance(entry, dict) for entry in found):
        found = {entry.get("name"): entry.get("template") for entry in found}
    if found is None or found == {}:
        return {}
    if not isinstance(found, dict) or not all(isinstance(text, str) for pair in found.items() for text in pair):
        raise DataError(f"{path}: 'chat_template' is neither a text nor a list of named templates: correct it")
    return found


def _environment():
    """A sandbox with the functions, filters and tags that chat templates rely on."""
    import jinja2
    from jinja2.ext import Extension, loopcontrols

    class GenerationTag(Extension):
        """`{% generation %}` marks the assistant's text; it does not change the output.

        Positions are counted as in transformers: from what was rendered before the block began.
        """

        tags = {"generation"}

        def __init__(self, environment):
            super().__init__(environment)
            environment.extend(follow=self._follow)
            self._blocks, self._marked = [], []

        def _follow(self, blocks, marked):
            """From here on `blocks` receives rendered text, and `marked` its marked parts."""
            self._blocks, self._marked = blocks, marked

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller):
            text = caller()
            start = sum(map(len, self._blocks))
            self._marked.append((start, start + len(text)))
            return text

    environment = sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _to_json(value: Any, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # Jinja's own filter escapes HTML, which a prompt must not contain.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str):
    import jinja2

    raise jinja2.TemplateError(message)
