"""Special and added tokens declared in a checkpoint's files, merged as in transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Mapping, NamedTuple, Optional, Union

from tokenizers import AddedToken, Tokenizer

from .settings_file import read_json_object

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
Token = Union[str, AddedToken]


class UnusualDeclaration(Exception):
    """A declaration that is not supported here; transformers has to interpret it."""


class SpecialTokens(NamedTuple):
    """`named` maps bos_token and so on, then model-specific names, to tokens; `added` has the added tokens by id."""

    named: dict[str, Token]
    extra: list[Token]
    added: dict[int, AddedToken]

    def template_variables(self) -> dict[str, str]:
        return {name: str(token) for name, token in self.named.items()}

    def texts(self) -> list[str]:
        return list(dict.fromkeys(str(token) for token in [*self.named.values(), *self.extra]))


def declared_special_tokens(
    directory: Path, settings: Mapping[str, Any], tokenizer: Tokenizer, defaults: Mapping[str, Optional[str]]
) -> SpecialTokens:
    """Merges tokenizer_config.json (`settings`), the older files beside it, tokenizer.json and a class's defaults."""
    settings = {**defaults, **settings}
    if "additional_special_tokens" in settings:
        settings.setdefault("extra_special_tokens", settings.pop("additional_special_tokens"))
    if "added_tokens_decoder" in settings:
        added = {int(index): _added_token(token) for index, token in settings["added_tokens_decoder"].items()}
    else:
        settings.update(_special_tokens_map(directory, settings))
        added = {**_added_tokens_file(directory, settings), **tokenizer.get_added_tokens_decoder()}
    named = {name: token for name in NAMED if (token := _token(settings.get(name))) is not None}
    extra = settings.get("extra_special_tokens", settings.get("additional_special_tokens")) or []
    named.update(_model_specific(settings, extra))
    extra = [] if isinstance(extra, dict) else [_token(token) for token in extra]
    return SpecialTokens(named, extra, added)


def add_missing_tokens(tokenizer: Tokenizer, tokens: SpecialTokens) -> None:
    """Adds missing tokens to `tokenizer` in the order that gives the same ids as in transformers."""
    present = tokenizer.get_added_tokens_decoder().values()
    descriptions = {repr(token) for token in present}
    missing: list[Token] = [token for _, token in sorted(tokens.added.items()) if repr(token) not in descriptions]
    texts = {str(token) for token in [*present, *missing]}
    for token in [*tokens.named.values(), *tokens.extra]:
        if str(token) not in texts:
            texts.add(str(token))
            missing.append(token)
    names = {str(token) for token in tokens.named.values()}
    for i, token in enumerate(missing):
        if isinstance(token, str):
            missing[i] = AddedToken(token, special=True)
        elif str(token) in names:
            token.special = True
    tokenizer.add_tokens(missing)


def _token(value: Any) -> Optional[Token]:
    if value is None or isinstance(value, (str, AddedToken)):
        return value
    if isinstance(value, dict) and value.get("__type") == "AddedToken":
        return _added_token(value)
    raise UnusualDeclaration


def _added_token(value: Any) -> AddedToken:
    if isinstance(value, AddedToken):
        return value
    if not isinstance(value, dict):
        raise UnusualDeclaration
    fields = {name: field for name, field in value.items() if name != "__type"}
    return AddedToken(**fields)


def _model_specific(settings: Mapping[str, Any], extra: Any) -> dict[str, Token]:
    """Tokens with model-specific names, such as `image_token`."""
    found = {
        name: value
        for name, value in settings.items()
        if name.endswith("_token") and name not in NAMED and isinstance(value, (str, dict, AddedToken))
    }
    if isinstance(extra, dict):
        found.update(extra)
    return {name: token for name, value in found.items() if (token := _token(value)) is not None}


def _special_tokens_map(directory: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """special_tokens_map.json, which older checkpoints have besides tokenizer_config.json."""
    merged: dict[str, Any] = {}
    for name, value in read_json_object(directory / "special_tokens_map.json").items():
        if isinstance(value, dict) and name != "extra_special_tokens":
            value = AddedToken(**{**_without_special(value), "special": True})
        elif name == "extra_special_tokens" and isinstance(value, list):
            tokens = [AddedToken(**{**token, "special": True}) if isinstance(token, dict) else token for token in value]
            value = list(settings.get(name) or [])
            value += [token for token in tokens if token not in value]
        merged[name] = value
    return merged


def _without_special(token: Mapping[str, Any]) -> dict[str, Any]:
    return {name: field for name, field in token.items() if name != "special"}


def _added_tokens_file(directory: Path, settings: Mapping[str, Any]) -> dict[int, AddedToken]:
    """added_tokens.json, from even older checkpoints."""
    special = {str(settings[name]) for name in NAMED if settings.get(name)}
    special.update(str(token) for token in settings.get("extra_special_tokens") or ())
    return {
        index: AddedToken(text, normalized=text not in special, special=text in special)
        for text, index in read_json_object(directory / "added_tokens.json").items()
    }
