"""Small random Llama-3.2-Vision checkpoints, samples with images for them, and transformers' logits."""

import numpy
import torch
import transformers
from safetensors.numpy import load_file, save_file

from support import program, tiny_models

IMAGE_SIZE, TILES, VOCABULARY = 28, 4, 96
VISION = {"hidden_size": 32, "num_hidden_layers": 3, "num_global_layers": 2, "attention_heads": 2,
          "intermediate_size": 48, "vision_output_dim": 96, "image_size": IMAGE_SIZE, "patch_size": 7,
          "intermediate_layers_indices": [0, 2]}
TEXT = {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 96, "max_position_embeddings": 64,
        "cross_attention_layers": [1, 3], "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
# Arrangements of tiles with their ids, as the image processor numbers them.
RATIOS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 2, 6: 4, 7: 3, 8: 4}


def save(folder, dtype=torch.float32, seed=0, vision=None, text=None):
    config = transformers.MllamaConfig(
        vision_config={**VISION, **(vision or {})}, text_config={**TEXT, **(text or {})}, image_token_index=VOCABULARY)
    torch.manual_seed(seed)
    model = transformers.MllamaForConditionalGeneration(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embedding" in name and parameter.dim() > 1:  # positions must matter
                parameter.normal_(std=0.7)
            else:
                tiny_models.randomize(name, parameter)
            if name.endswith("gate") or "gate_" in name and parameter.numel() == 1:
                parameter.uniform_(0.5, 1.0)
    model.to(dtype).save_pretrained(folder)
    return folder


class Sample:
    """`images` are ids of RATIOS; `starts` says from which token on each is attended to (None: by no token)."""

    def __init__(self, length, images=(), starts=None, seed=0):
        random = numpy.random.default_rng([length, len(images), seed])
        self.ids = random.integers(VOCABULARY + 1, size=length).tolist()
        self.ratios = list(images)
        self.pixels = [random.normal(size=(RATIOS[i], 3, IMAGE_SIZE, IMAGE_SIZE)).astype(numpy.float32) for i in images]
        self.mask = numpy.zeros((length, len(images), TILES), dtype=numpy.uint8)
        bounds = [*(starts if starts is not None else range(len(images))), length]
        for image, (first, last) in enumerate(zip(bounds, bounds[1:])):
            if first is not None:
                self.mask[first:last, image, : RATIOS[images[image]]] = 1

    def model_inputs(self):
        inputs = {"input_ids": torch.tensor([self.ids])}
        if not self.ratios:
            return inputs
        pixels = numpy.zeros((1, len(self.ratios), TILES, 3, IMAGE_SIZE, IMAGE_SIZE), dtype=numpy.float32)
        filled = numpy.zeros((1, len(self.ratios), TILES), dtype=numpy.int64)
        for image, tiles in enumerate(self.pixels):
            pixels[0, image, : len(tiles)] = tiles
            filled[0, image, : len(tiles)] = 1
        return {**inputs, "pixel_values": torch.tensor(pixels), "aspect_ratio_mask": torch.tensor(filled),
                "aspect_ratio_ids": torch.tensor([self.ratios]),
                "cross_attention_mask": torch.tensor(self.mask[None].astype(numpy.int64))}


def write_token_file(path, samples):
    """As `layerpress prepare` writes it."""
    pixels = [tiles for sample in samples for tiles in sample.pixels]
    tensors = {
        "input_ids": numpy.concatenate([numpy.asarray(sample.ids, dtype=numpy.int32) for sample in samples]),
        "sample_offsets": numpy.cumsum([0, *(len(sample.ids) for sample in samples)], dtype=numpy.int64)}
    if pixels:
        tensors |= {f"pixel_values.{i}": tiles for i, tiles in enumerate(pixels)}
        tensors |= {
            "image_offsets": numpy.cumsum([0, *(len(sample.pixels) for sample in samples)], dtype=numpy.int64),
            "aspect_ratio_ids": numpy.array([i for sample in samples for i in sample.ratios], dtype=numpy.int64),
            "aspect_ratio_mask": numpy.array(
                [[tile < len(tiles) for tile in range(TILES)] for tiles in pixels], dtype=numpy.uint8),
            "cross_attention_mask": numpy.concatenate([sample.mask.reshape(-1, TILES) for sample in samples])}
    save_file(tensors, path, metadata={"format": f"layerpress.calibration.v{2 if pixels else 1}"})
    return path


def our_logits(model, samples, folder, dtype="float32"):
    """The output of print_logits for `samples`, packed into one batch: one array per sample."""
    tokens, written = write_token_file(folder / "tokens.safetensors", samples), folder / "logits.safetensors"
    program.run(model, tokens, written, "--dtype", dtype, program=program.PRINT_LOGITS)
    return numpy.split(load_file(written)["logits"], numpy.cumsum([len(sample.ids) for sample in samples])[:-1])


def load(folder, dtype=torch.float32):
    return transformers.MllamaForConditionalGeneration.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager").eval()


@torch.no_grad()
def their_logits(folder, samples, dtype=torch.float32):
    """transformers' logits, each sample alone."""
    model = load(folder, dtype)
    return [model(**sample.model_inputs(), use_cache=False).logits[0].float().numpy() for sample in samples]
