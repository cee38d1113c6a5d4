"""The checkpoint's own processor for images and text: transformers' AutoProcessor."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, Sequence

from .chat_template import CheckpointTemplates
from .content import Content, Conversation, Kind
from .errors import DataError, MissingPackageError, one_line
from .given_embeddings import GivenEmbeddings
from .image_embedder import ImageEmbedder
from .images import image_parts, message_images, open_image
from .settings_file import read_json_object

_TENSORS = ("input_ids", "pixel_values", "aspect_ratio_ids", "aspect_ratio_mask", "cross_attention_mask")
_WITHOUT_MEANING = ("attention_mask", "token_type_ids", "num_tiles")
_MARK = "<image>"  # stands for an image in LLaVA's datasets and TRL's, whatever the model's token


def takes_images(directory: Path) -> bool:
    """Whether the checkpoint is of a model with a vision part."""
    return isinstance(read_json_object(directory / "config.json").get("vision_config"), dict)


def takes_sound(directory: Path) -> bool:
    """Whether the checkpoint is of a model with an audio part."""
    return isinstance(read_json_object(directory / "config.json").get("audio_config"), dict)


def image_token(directory: Path) -> int | None:
    """The image token, according to config.json."""
    config = read_json_object(directory / "config.json")
    token = config.get("image_token_index", config.get("image_token_id"))
    return token if type(token) is int else None


class SampleImages(NamedTuple):
    """The images of one sample; `pixels` has an array [filled tiles, channels, height, width] for each image."""

    pixels: list
    ratios: list[int]
    filled: Any  # uint8 [images, tiles]
    mask: Any  # uint8 [tokens, images, tiles]


class VisionProcessor:
    """Loads transformers and the processor when the first sample with images arrives."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._processor = None
        self._templates: CheckpointTemplates | None = None
        # The vision part of this kind is in the graph; of others, the embeddings that it makes are calibration data.
        self._in_graph = read_json_object(directory / "config.json").get("model_type") == "mllama"
        self.embedder = ImageEmbedder(directory)

    def encode(self, content: Content, folder: Path | None) -> tuple[Sequence[int], SampleImages | GivenEmbeddings]:
        """Token ids and images of one sample, uncut."""
        given, images = self.inputs(content, folder)
        if self._in_graph:
            return self._sample(content.place, given, images)
        return self.embedder.embed(content.place, given)

    def inputs(self, content: Content, folder: Path | None) -> tuple[dict[str, Any], int]:
        """The processor's tensors for one sample, and its number of images."""
        if content.kind is Kind.TOKEN_IDS:
            raise DataError(f"{content.place}: has images beside 'input_ids': pass text or messages instead")
        processor = self._load()
        sources = list(content.images)
        if content.kind is Kind.CONVERSATION:
            sources = message_images(content.value, sources)
            text = self._render(processor, content, len(sources))
        else:
            text = content.value
            if processor.image_token not in text:
                stand_in = self._placeholder(processor)
                text = text.replace(_MARK, stand_in) if _MARK in text else stand_in * len(sources) + text
        images = [open_image(content.place, source, folder) for source in sources]
        token = getattr(processor, "image_token", None)
        named = text.count(token) if token else len(images)
        if named not in (0, len(images)):  # which some processors take
            raise DataError(f"{content.place}: the text names {named} images, and the row has {len(images)}: pass as many, in a column "
                            "'images' or as 'path' of the messages' parts")
        try:
            given = processor(
                images=images,
                text=text,
                add_special_tokens=content.kind is Kind.TEXT,
                return_tensors="np" if self._in_graph else "pt",
            )
        except Exception as fault:  # processors raise their own kinds, some of them without a text
            reason = one_line(fault) or type(fault).__name__
            if named != len(images):
                reason = f"the text names {named} images, and the row has {len(images)}"
            raise DataError(
                f"{content.place}: the processor of {self._directory} fails ({reason}): check the row's text and images"
            ) from None
        return dict(given), len(images)

    def _load(self):
        if self._processor is not None:
            return self._processor
        if not any((self._directory / name).is_file() for name in ("preprocessor_config.json", "processor_config.json")):
            raise DataError(
                f"{self._directory}: the checkpoint has no image processor: add its processor_config.json or preprocessor_config.json"
            )
        try:
            from transformers import AutoProcessor
        except ImportError as fault:
            raise MissingPackageError("transformers", f"the image processor of {self._directory}", fault) from None
        try:
            processor = AutoProcessor.from_pretrained(str(self._directory), local_files_only=True, trust_remote_code=False)
        except ImportError as fault:
            raise MissingPackageError("pillow", f"the image processor of {self._directory}", fault) from None
        except Exception as fault:  # each processor class raises its own kind
            raise DataError(
                f"{self._directory}: no image processor can be loaded ({one_line(fault)}): "
                "restore preprocessor_config.json and the tokenizer's files"
            ) from None
        if not hasattr(processor, "image_processor"):
            raise DataError(
                f"{self._directory}: the checkpoint's processor takes no images: add its preprocessor_config.json"
            )
        self._processor = processor
        return processor

    def _placeholder(self, processor) -> str:
        """What stands for an image in a text: its token, between those that the model wants around it."""
        config = read_json_object(self._directory / "config.json")
        for kind in ("vision", "image"):  # the latter of GLM
            around = [config.get(f"{kind}_{end}_token_id") for end in ("start", "end")]
            if all(type(token) is int for token in around):
                first, last = processor.tokenizer.convert_ids_to_tokens(around)
                return f"{first}{processor.image_token}{last}"
        return processor.image_token

    def _render(self, processor, content: Content, images: int) -> str:
        if self._templates is None:
            self._templates = CheckpointTemplates(self._directory, processor.chat_template)
        messages = _with_image_parts(content.value, images, (getattr(processor, "image_token", None) or _MARK, _MARK))
        return self._templates.for_messages(messages).render(messages, processor.tokenizer.special_tokens_map, content.place)

    def _sample(self, place: str, given: dict, images: int) -> tuple[Sequence[int], SampleImages]:
        """Unpacks the processor's tensors, which are a batch of one."""
        import numpy

        unknown = [name for name in given if name not in _TENSORS and name not in _WITHOUT_MEANING]
        missing = [name for name in _TENSORS if name not in given]
        if unknown or missing:
            raise DataError(
                f"{self._directory}: its processor gives {', '.join(given)}; "
                f"samples with images need {', '.join(_TENSORS)} and nothing else: this kind of model is not supported"
            )
        tensors = {name: numpy.asarray(given[name])[0] for name in _TENSORS}
        tokens, filled, mask = tensors["input_ids"], tensors["aspect_ratio_mask"], tensors["cross_attention_mask"]
        if len(filled) != images or mask.shape[:2] != (len(tokens), images):
            raise DataError(
                f"{place}: {images} images and tokens for {mask.shape[1]} of them: "
                "the text must name each image once, in their order"
            )
        pixels = [
            numpy.ascontiguousarray(tiles[: int(tiles_there.sum())], dtype=numpy.float32)
            for tiles, tiles_there in zip(tensors["pixel_values"], filled)
        ]
        ratios = [int(ratio) for ratio in tensors["aspect_ratio_ids"]]
        return tokens.tolist(), SampleImages(pixels, ratios, filled.astype(numpy.uint8), mask.astype(numpy.uint8))


def _with_image_parts(messages: Conversation, images: int, marks: tuple[str, ...]) -> Conversation:
    """Puts all images before the user's first message if no message contains an image, neither as a part nor as one of the marks in its
    text, which become parts."""
    if image_parts(messages):
        return messages
    for mark in marks:
        if any(mark in text for message in messages for text in _texts(message.get("content"))):
            parted = Conversation([{**message, "content": _parts_at(mark, message.get("content"))} for message in messages])
            parted.tools = messages.tools
            return parted
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)
    content = messages[first].get("content")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])
    changed = {**messages[first], "content": [{"type": "image"}] * images + parts}
    with_parts = Conversation([*messages[:first], changed, *messages[first + 1 :]])
    with_parts.tools = messages.tools
    return with_parts


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]


def _parts_at(mark: str, content: Any) -> Any:
    """The content with image parts in the place of marks. Templates have line breaks of their own around images."""
    if not any(mark in text for text in _texts(content)):
        return content
    parts: list[Any] = []
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        pieces = part["text"].split(mark) if isinstance(part, dict) and isinstance(part.get("text"), str) else None
        if pieces is None:
            parts.append(part)
            continue
        for i, piece in enumerate(pieces):
            if i > 0:
                parts.append({"type": "image"})
                piece = piece.removeprefix("\n")
            if i + 1 < len(pieces):
                piece = piece.removesuffix("\n")
            if piece:
                parts.append({"type": "text", "text": piece})
    return parts
