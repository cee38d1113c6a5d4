"""The content of a row: token ids, a text, or a conversation."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any, Mapping, NamedTuple, Optional

from .errors import DataError
from .images import holds_something, image_parts, row_images
from .loss_mask import without_padding

TOKEN_IDS_COLUMN = "input_ids"
MESSAGES_COLUMN = "messages"
CONVERSATIONS_COLUMN = "conversations"  # of ShareGPT: turns with `from` and `value`
TOOLS_COLUMN = "tools"
POSITIONS_COLUMN = "position_ids"
DEFAULT_TEXT_COLUMN = "text"
_LARGEST_ID = 2**31 - 1
_UNREAD_PARTS = ("audio", "file", "audio_url", "input_audio", "video", "video_url", "input_image", "input_video")  # of messages
_ROLES_OF_TURNS = {"human": "user", "gpt": "assistant"}  # others keep their name


class Kind(Enum):
    TEXT = "text"
    CONVERSATION = "conversation"
    TOKEN_IDS = "token ids"


class Conversation(list):
    """Messages, with the `tools` that the row offers to the chat template (JSON schemas), or None."""

    tools: Optional[list[dict]] = None


class Content(NamedTuple):
    """`place` names the row in messages to the user."""

    place: str
    kind: Kind
    value: Any
    images: tuple = ()  # as they stand in the row
    illustrated: bool = False  # has images, there or in the conversation
    loss_mask: Any = None  # as it stands in the row


def lacks_columns(text_column: str, columns: Any) -> bool:
    """Whether a column that the user named is missing, or all that could be used."""
    return text_column not in columns and (text_column != DEFAULT_TEXT_COLUMN or not set(wanted_columns(text_column)) & set(columns))


def wanted_columns(text_column: str) -> tuple[str, ...]:
    """The columns that are considered, in order of preference."""
    return tuple(dict.fromkeys((TOKEN_IDS_COLUMN, text_column, MESSAGES_COLUMN, CONVERSATIONS_COLUMN)))


def row_content(place: str, row: Mapping[str, Any], text_column: str, with_images: bool = False, unread: tuple[str, ...] = ()) -> Content:
    """Picks the first of `input_ids`, the text column, `messages` and `conversations` that is not null; or an empty text. Refuses rows with
    something in one of the columns `unread`, which the model could take, but nothing here reads."""
    for name in unread:
        if holds_something(row.get(name)):
            raise DataError(f"{place}: '{name}' holds sound or a video, which is not read: pass what the model's processor makes of it "
                            "(in Python), or leave it out")
    content = _text_content(place, row, text_column)
    if not with_images:
        return content
    images = tuple(row_images(place, row))
    in_messages = content.kind is Kind.CONVERSATION and bool(image_parts(content.value))
    return content._replace(images=images, illustrated=bool(images) or in_messages)


def _text_content(place: str, row: Mapping[str, Any], text_column: str) -> Content:
    present = [name for name in wanted_columns(text_column) if name in row]
    if lacks_columns(text_column, row):
        raise missing_column(place, row, text_column)
    name = next((name for name in present if row[name] is not None), None)
    if name is None:
        return Content(place, Kind.TEXT, "")
    value = row[name]
    if name == TOKEN_IDS_COLUMN:
        tokens, mask = without_padding(place, row, _token_ids(place, value))
        if not counts_from_0(row.get(POSITIONS_COLUMN), len(tokens)):
            raise DataError(f"{place}: '{POSITIONS_COLUMN}' does not count the tokens from 0, and is not read otherwise: make a row of each "
                            "text, or leave the column out")
        return Content(place, Kind.TOKEN_IDS, tokens, loss_mask=mask)
    if name == text_column and isinstance(value, str):
        return Content(place, Kind.TEXT, _encodable(place, name, value))
    return Content(place, Kind.CONVERSATION, _conversation(place, name, value, row.get(TOOLS_COLUMN)))


def missing_column(place: str, columns: Any, text_column: str) -> DataError:
    """The error for data without a usable column; it names the existing ones."""
    columns = list(columns)
    names = ", ".join(f"'{name}'" for name in columns[:20]) or "none"
    named = (text_column,) if text_column != DEFAULT_TEXT_COLUMN else wanted_columns(text_column)
    wanted = ", ".join(f"'{name}'" for name in named)
    if len(columns) == 1 and any(mark in names for mark in ";\t|"):
        return DataError(f"{place}: no column {wanted}, but one column {names}: separate columns by commas")
    return DataError(f"{place}: no column {wanted}; the columns there are {names}: name the text with --text-column")


def _encodable(place: str, name: str, text: str) -> str:
    # JSON can contain half a surrogate pair, which is not valid in UTF-8 and which no tokenizer accepts.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as fault:
        raise DataError(
            f"{place}: '{name}' holds half a surrogate pair at character {fault.start}: repair or remove the row"
        ) from None
    return text


def _token_ids(place: str, value: Any) -> list[int]:
    if not isinstance(value, (list, tuple)):
        raise DataError(f"{place}: '{TOKEN_IDS_COLUMN}' is not a list of integers but {type(value).__name__}")
    for position, token in enumerate(value):
        if type(token) is not int or not 0 <= token <= _LARGEST_ID:
            raise DataError(
                f"{place}: '{TOKEN_IDS_COLUMN}' entry {position} is {str(token)[:40]!r}: "
                "token ids are integers from 0 to 2147483647"
            )
    return list(value)


def counts_from_0(positions: Any, tokens: int) -> bool:
    """Whether the positions of a row, padding on one side left out, are those that are assumed everywhere; None says nothing."""
    if positions is None:
        return True
    counted = list(range(tokens))
    return isinstance(positions, (list, tuple)) and counted in (list(positions[:tokens]), list(positions[len(positions) - tokens:]))


def _conversation(place: str, name: str, value: Any, tools: Any) -> Conversation:
    if not isinstance(value, (list, tuple)):
        raise DataError(f"{place}: '{name}' is neither a text nor a list of messages but {type(value).__name__}")
    messages = [_message_of_turn(turn) for turn in value]
    for position, message in enumerate(messages):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise DataError(
                f"{place}: '{name}' entry {position} is not a message: "
                "each one is an object with 'role' and 'content', or with 'from' and 'value'"
            )
    conversation = Conversation(_with_known_parts(place, message) for message in messages)
    conversation.tools = _tools(place, tools)
    return conversation


def _message_of_turn(turn: Any) -> Any:
    """A turn of ShareGPT as a message; anything else as it is."""
    if not isinstance(turn, dict) or "role" in turn or not isinstance(turn.get("from"), str) or "value" not in turn:
        return turn
    return {"role": _ROLES_OF_TURNS.get(turn["from"], turn["from"]), "content": turn["value"]}


def _tools(place: str, value: Any) -> Optional[list[dict]]:
    """The column `tools` of a row with messages: a list of objects, or the same as a text of JSON. None if it is empty."""
    tools = value
    if isinstance(value, str) and value.strip():
        try:
            tools = json.loads(value)
        except (ValueError, RecursionError):
            pass  # stays a text, which is refused below
    if not tools:
        return None
    if not isinstance(tools, (list, tuple)) or not all(isinstance(tool, dict) for tool in tools):
        raise DataError(
            f"{place}: '{TOOLS_COLUMN}' is not a list of objects (JSON schemas), which the chat template needs: "
            "correct, rename or remove the column"
        )
    return list(tools)


def _with_known_parts(place: str, message: dict) -> dict:
    """A message whose images have one form. Refuses sound and videos, which no template shows."""
    parts = message.get("content")
    if not isinstance(parts, (list, tuple)):
        return message
    kinds = [part.get("type") if isinstance(part, dict) else None for part in parts]
    if unread := next((kind for kind in kinds if kind in _UNREAD_PARTS), None):
        raise DataError(f"{place}: a message has a part of type '{unread}', which is not read: leave it out")
    if "image_url" not in kinds:
        return message
    return {**message, "content": [_image_part(part) if kind == "image_url" else part for kind, part in zip(kinds, parts)]}


def _image_part(part: dict) -> dict:
    """An image as OpenAI's messages name it, as transformers' do."""
    named = part.get("image_url")
    return {"type": "image", "url": named.get("url") if isinstance(named, dict) else named}
