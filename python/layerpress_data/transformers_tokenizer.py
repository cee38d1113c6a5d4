"""The checkpoint's tokenizer through transformers: slower to load, but supports every kind."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Optional, Sequence

from .chat_template import CheckpointTemplates, Rendered
from .content import Conversation
from .errors import DataError, MissingPackageError, one_line, torchvision_fault
from .length import LengthLimit, check_length
from .loss_mask import Masked, masked_tokens


def _check_converter(directory: Path) -> None:
    """Refuses a tokenizer that is a SentencePiece model without the packages that read it; transformers then speaks of tiktoken."""
    if (directory / "tokenizer.json").is_file() or next(directory.glob("*.model"), None) is None:
        return
    for module, package in (("sentencepiece", "sentencepiece"), ("google.protobuf", "protobuf")):
        try:
            import_module(module)
        except ImportError as fault:
            raise MissingPackageError(package, f"the tokenizer of {directory}", fault) from None


class TransformersTokenizer:
    """Has the same interface as CheckpointTokenizer."""

    def __init__(self, directory: Path):
        try:
            from transformers import AutoTokenizer
        except ImportError as fault:
            raise MissingPackageError("transformers", f"the tokenizer of {directory}", fault) from None
        self._directory = directory
        try:
            # Code of the checkpoint is never run for its tokenizer: False, because None asks on the terminal.
            self._tokenizer = AutoTokenizer.from_pretrained(str(directory), local_files_only=True, trust_remote_code=False)
        except Exception as fault:  # each tokenizer class raises its own kind
            if torchvision_fault(fault):
                raise MissingPackageError("transformers", f"the tokenizer of {directory}", fault) from None
            _check_converter(directory)
            raise DataError(
                f"{directory}: no tokenizer can be loaded ({one_line(fault)}): "
                "copy tokenizer.json and tokenizer_config.json into the checkpoint"
            ) from None
        # Without its files, transformers makes some classes with special tokens only. mistral_common's knows no added ones.
        added: dict = getattr(self._tokenizer, "get_added_vocab", dict)()
        if not self._tokenizer.get_vocab().keys() - added.keys():
            raise DataError(
                f"{directory}: no tokenizer can be loaded (its vocabulary is missing): "
                "copy tokenizer.json and tokenizer_config.json into the checkpoint"
            )
        self._templates = CheckpointTemplates(directory, self._tokenizer.chat_template)
        self.limit = LengthLimit(getattr(self._tokenizer, "model_max_length", None))

    def encode(self, texts: Sequence[str], max_length: Optional[int], add_special_tokens: bool) -> list[list[int]]:
        longest = self.limit.within(max_length)
        if add_special_tokens:
            check_length(self._directory, longest, self._tokenizer.num_special_tokens_to_add(False))
        try:
            samples = self._tokenizer(
                list(texts), add_special_tokens=add_special_tokens, truncation=longest is not None, max_length=longest)["input_ids"]
            self.limit.note(max_length, samples)
            return samples
        except Exception as fault:
            raise DataError(f"{self._directory}: the tokenizer fails ({one_line(fault)}): restore its files") from None

    def encode_marked(self, conversations: Sequence[Rendered], max_length: Optional[int]) -> list[Masked]:
        if not self._tokenizer.is_fast:
            raise DataError(
                f"{self._directory}: its tokenizer does not say where tokens stand in the text, which --use-loss-mask needs: "
                "pass rows of input_ids with a loss_mask"
            )
        texts = [each.text for each in conversations]
        longest = self.limit.within(max_length)
        encoded = self._tokenizer(texts, add_special_tokens=False, truncation=longest is not None, max_length=longest)
        self.limit.note(max_length, encoded["input_ids"])
        return [
            masked_tokens(encoded["input_ids"][i], each.marked, partial(encoded.char_to_token, i))
            for i, each in enumerate(conversations)
        ]

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def render(self, messages: Conversation, place: str) -> str:
        return self._templates.for_messages(messages).render(messages, self._tokenizer.special_tokens_map, place)

    def render_marked(self, messages: Conversation, place: str) -> Rendered:
        return self._templates.for_messages(messages).render_marked(messages, self._tokenizer.special_tokens_map, place)
