"""The checkpoint's tokenizer: gives the same token ids as transformers, without loading transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Mapping, Optional, Sequence

from .chat_template import CheckpointTemplates, Rendered
from .content import Conversation
from .errors import DataError, MissingPackageError, one_line
from .length import LengthLimit, check_length
from .loss_mask import Masked, masked_tokens
from .settings_file import read_json_object
from .tokenizer_class import BACKEND, known_class


class CheckpointTokenizer:
    """Wraps a configured `tokenizers.Tokenizer`."""

    def __init__(self, directory: Path, tokenizer, truncation_side: str, template_variables: Mapping[str, str], limit: LengthLimit):
        self._directory = directory
        self._tokenizer = tokenizer
        self._truncation_side = truncation_side
        self._template_variables = template_variables
        self.limit = limit
        self._templates = CheckpointTemplates(directory)
        # The fast variant omits character offsets; older releases lack it.
        self._encode_batch = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def encode(self, texts: Sequence[str], max_length: Optional[int], add_special_tokens: bool) -> list[list[int]]:
        """Tokenizes each text and cuts it to `max_length` and the tokenizer's own limit, special tokens included; None cuts nothing."""
        longest = self.limit.within(max_length)
        if add_special_tokens:
            check_length(self._directory, longest, self._tokenizer.num_special_tokens_to_add(False))
        try:
            if longest is None:
                self._tokenizer.no_truncation()
            else:
                self._tokenizer.enable_truncation(longest, direction=self._truncation_side)
            encodings = self._encode_batch(list(texts), add_special_tokens=add_special_tokens)
        except Exception as fault:  # the library raises plain Exception
            raise DataError(
                f"{self._directory}: the tokenizer fails ({one_line(fault)}): restore the checkpoint's tokenizer"
            ) from None
        samples = [encoding.ids for encoding in encodings]
        self.limit.note(max_length, samples)
        return samples

    def encode_marked(self, conversations: Sequence[Rendered], max_length: Optional[int]) -> list[Masked]:
        """Tokenizes rendered conversations, with masks of their marked parts."""
        self.encode([], max_length, False)  # sets how texts are cut
        encodings = self._tokenizer.encode_batch([each.text for each in conversations], add_special_tokens=False)
        self.limit.note(max_length, (encoding.ids for encoding in encodings))
        return [
            masked_tokens(encoding.ids, each.marked, encoding.char_to_token)
            for encoding, each in zip(encodings, conversations)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def render(self, messages: Conversation, place: str) -> str:
        """Applies the checkpoint's chat template."""
        return self._templates.for_messages(messages).render(messages, self._template_variables, place)

    def render_marked(self, messages: Conversation, place: str) -> Rendered:
        return self._templates.for_messages(messages).render_marked(messages, self._template_variables, place)


def load_tokenizer(directory: Path):
    """Returns an object with `encode` and `render` for this checkpoint.

    Where transformers would do what is not known here, transformers does it, at the cost of loading it.
    """
    tokenizer = _load_known(directory)
    if tokenizer is not None:
        return tokenizer
    from .transformers_tokenizer import TransformersTokenizer

    return TransformersTokenizer(directory)


def _load_known(directory: Path) -> Optional[CheckpointTokenizer]:
    if not (directory / "tokenizer.json").is_file():
        return None
    settings = read_json_object(directory / "tokenizer_config.json")
    class_name = known_class(directory, read_json_object(directory / "config.json"), settings)
    if class_name is None:
        return None
    loaded = _read_tokenizer(directory / "tokenizer.json")
    from .special_tokens import UnusualDeclaration

    try:
        return _set_up(directory, class_name, loaded, settings)
    except (UnusualDeclaration, AttributeError, TypeError, ValueError):
        return None  # a malformed declaration: transformers has the last word, and its message


def _read_tokenizer(path: Path):
    try:
        from tokenizers import Tokenizer
    except ImportError as fault:
        raise MissingPackageError("tokenizers", "tokenizing", fault) from None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as fault:  # the library raises plain Exception
        raise DataError(f"{path}: cannot be loaded ({one_line(fault)}): restore the checkpoint's tokenizer") from None


def _set_up(directory: Path, class_name: str, loaded, settings: dict) -> Optional[CheckpointTokenizer]:
    from .rebuilt_tokenizer import default_tokens, rebuild
    from .special_tokens import add_missing_tokens, declared_special_tokens

    truncation, padding = loaded.truncation, loaded.padding
    if padding is not None:
        settings = {"pad_token": padding["pad_token"], **settings}
    tokens = declared_special_tokens(directory, settings, loaded, default_tokens(class_name))
    tokenizer = loaded if class_name == BACKEND else rebuild(class_name, loaded, settings)
    if tokenizer is None:
        return None
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = bool(settings.get("split_special_tokens", False))
    add_missing_tokens(tokenizer, tokens)
    if class_name == "Qwen2Tokenizer":
        from tokenizers import AddedToken

        tokenizer.add_tokens([AddedToken(text, special=True) for text in tokens.texts()])
    side = settings.get("truncation_side", truncation["direction"] if truncation else "right")
    if side not in ("left", "right"):
        return None
    return CheckpointTokenizer(directory, tokenizer, side, tokens.template_variables(), LengthLimit(settings.get("model_max_length")))
