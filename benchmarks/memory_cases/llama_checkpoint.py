"""Makes a random checkpoint with the shape of Llama-3-8B, or of a smaller Llama, on disk, one piece of a tensor at a time.

Weights are drawn from N(0, 0.02), norms are one. One block of 64 MiB is drawn once; every tensor is made of pieces of it
that start at random places, so that 16 GB are written as fast as the disk takes them. Pieces of one tensor may overlap in
the block, but shifted by a random number of elements, so that no two rows are equal.
"""
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

import numpy
from safetensors_stream import TensorSpec, read_header, write_file, write_shards

BLOCK_ELEMENTS = 32 * 1024 * 1024
PIECE_ELEMENTS = 8 * 1024 * 1024
WRITE_BACK_BYTES = 256 << 20  # dirty pages that may pile up: more would only slow down what runs next


@dataclass(frozen=True)
class LlamaShape:
    """Sizes, named as in config.json; the defaults are those of Llama-3-8B."""
    num_hidden_layers: int = 32
    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    vocab_size: int = 128256
    max_position_embeddings: int = 8192

    @property
    def key_value_size(self) -> int:
        return self.hidden_size // self.num_attention_heads * self.num_key_value_heads

    def config(self) -> dict:
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **asdict(self), "hidden_act": "silu",
                "head_dim": self.hidden_size // self.num_attention_heads, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
                "initializer_range": 0.02, "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
                "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16", "use_cache": True}

    def tensors(self) -> list[TensorSpec]:
        """The tensors in the order of the modules, in which the original is sharded."""
        embedding = (self.vocab_size, self.hidden_size)
        layers = [spec for layer in range(self.num_hidden_layers) for spec in self._layer(f"model.layers.{layer}.")]
        return [TensorSpec("model.embed_tokens.weight", embedding), *layers,
                TensorSpec("model.norm.weight", (self.hidden_size,)), TensorSpec("lm_head.weight", embedding)]

    def _layer(self, prefix: str) -> list[TensorSpec]:
        hidden, inner, key_value = self.hidden_size, self.intermediate_size, self.key_value_size
        shapes = {"self_attn.q_proj": (hidden, hidden), "self_attn.k_proj": (key_value, hidden),
                  "self_attn.v_proj": (key_value, hidden), "self_attn.o_proj": (hidden, hidden),
                  "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
                  "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        return [TensorSpec(f"{prefix}{name}.weight", shape) for name, shape in shapes.items()]


class RandomWeights:
    """Writes tensors of random bf16 numbers; the same seed and order of tensors give the same bytes."""

    def __init__(self, seed: int, block_elements: int = BLOCK_ELEMENTS) -> None:
        self._generator = numpy.random.default_rng(seed)
        self._block = bf16(self._generator.standard_normal(block_elements, dtype=numpy.float32) * numpy.float32(0.02))
        self._written = 0

    def write(self, spec: TensorSpec, file: BinaryIO) -> None:
        if spec.name.endswith("norm.weight"):
            file.write(bf16(numpy.ones(spec.elements, dtype=numpy.float32)).tobytes())
            return
        piece = min(PIECE_ELEMENTS, len(self._block) // 2)
        for start in range(0, spec.elements, piece):
            count = min(piece, spec.elements - start)
            first = int(self._generator.integers(len(self._block) - count + 1))
            file.write(self._block[first:first + count].data)
            self._write_back(file, 2 * count)

    def _write_back(self, file: BinaryIO, written: int) -> None:
        self._written += written
        if self._written >= WRITE_BACK_BYTES:
            file.flush()
            os.fdatasync(file.fileno())
            self._written = 0


def bf16(values: numpy.ndarray) -> numpy.ndarray:
    """The upper halves of fp32 numbers, rounded to nearest, ties to even."""
    bits = numpy.ascontiguousarray(values).view(numpy.uint32)
    bits += numpy.uint32(0x7FFF) + ((bits >> 16) & numpy.uint32(1))
    return (bits >> 16).astype(numpy.uint16)


def make_checkpoint(folder: Path, shape: LlamaShape, seed: int = 0, block_elements: int = BLOCK_ELEMENTS) -> Path:
    """Writes config.json, shards and index; the folder appears complete. An existing folder with this shape is kept."""
    wanted = json.dumps(shape.config(), indent=2) + "\n"
    if (folder / "config.json").is_file() and (folder / "config.json").read_text() == wanted:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    unfinished = folder.with_name(f".{folder.name}.making")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    weights = RandomWeights(seed, block_elements)
    write_shards(unfinished, shape.tensors(), weights.write)
    (unfinished / "config.json").write_text(wanted)
    unfinished.rename(folder)
    return folder


def write_token_file(path: Path, samples: int, length: int, vocabulary: int, seed: int = 0) -> Path:
    """Random token ids in the layout of `layerpress prepare`: `samples` of `length` tokens each."""
    tokens = numpy.random.default_rng(seed).integers(vocabulary, size=samples * length, dtype=numpy.int32)
    offsets = numpy.arange(samples + 1, dtype=numpy.int64) * length
    parts = {"sample_offsets": offsets, "input_ids": tokens}
    specs = [TensorSpec("sample_offsets", (samples + 1,), "I64"), TensorSpec("input_ids", (samples * length,), "I32")]
    write_file(path, specs, lambda spec, file: file.write(parts[spec.name].tobytes()))
    return path


def keep_first_layers(source: Path, folder: Path, layers: int) -> Path:
    """Copies the first `layers` layers of a Llama checkpoint in one file."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((source / "config.json").read_text())
    config["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    entries, data = read_header(source / "model.safetensors")
    dropped = tuple(f"model.layers.{layer}." for layer in range(layers, 1000))
    kept = [TensorSpec(name, tuple(entry["shape"]), entry["dtype"]) for name, entry in entries.items()
            if not name.startswith(dropped)]
    with (source / "model.safetensors").open("rb") as original:

        def copy(spec: TensorSpec, file: BinaryIO) -> None:
            original.seek(data + entries[spec.name]["data_offsets"][0])
            file.write(original.read(spec.bytes))

        write_file(folder / "model.safetensors", kept, copy)
    return folder
