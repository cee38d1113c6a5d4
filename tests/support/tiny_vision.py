"""A Llama-3.2-Vision checkpoint of a word tokenizer and an image processor of small tiles, without weights."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers, processors

IMAGE_SIZE = 28
# As the real one writes a conversation, in words.
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %} {{ m.role }} {% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{% if part.type == 'image' %} <|image|> {% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
WORDS = ["<unk>", *(f"w{i}" for i in range(1, 80)), "user", "assistant", "<|begin_of_text|>", "<|python_tag|>"]


def save_vision(directory: Path) -> Path:
    """Words w1 to w79 are tokens 1 to 79; `<|image|>` is the first id behind the 96 of the head."""
    directory.mkdir(exist_ok=True)
    vocabulary = {word: i for i, word in enumerate(WORDS)}
    vocabulary |= {f"unused{i}": i for i in range(len(WORDS), 96)}
    tokenizer = Tokenizer(models.WordLevel({**vocabulary, "<|image|>": 96}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    specials = ("<|begin_of_text|>", "<|python_tag|>", "<|image|>")
    tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in specials])
    bos = ("<|begin_of_text|>", tokenizer.token_to_id("<|begin_of_text|>"))
    tokenizer.post_processor = processors.TemplateProcessing(f"{bos[0]} $A", special_tokens=[bos])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"model_type": "mllama", "image_token_index": 96, "vision_config": {"image_size": IMAGE_SIZE}}
    if not (directory / "config.json").exists():
        (directory / "config.json").write_text(json.dumps(config))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos[0]}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    image_settings = {
        "image_processor_type": "MllamaImageProcessor", "processor_class": "MllamaProcessor", "max_image_tiles": 4,
        "size": {"height": IMAGE_SIZE, "width": IMAGE_SIZE}, "image_mean": [0.4, 0.5, 0.6],
        "image_std": [0.2, 0.3, 0.25]}
    (directory / "preprocessor_config.json").write_text(json.dumps(image_settings))
    return directory


def save_image(path: Path, width: int, height: int, seed: int = 0, mode: str = "RGB") -> Path:
    """A picture of large random blocks; the format is told by the name."""
    import numpy
    from PIL import Image

    blocks = numpy.random.default_rng(seed).integers(0, 256, size=(4, 4, 3), dtype=numpy.uint8)
    Image.fromarray(blocks).resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(path)
    return path
