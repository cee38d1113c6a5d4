"""Runs LLM Compressor's GPTQ on calibration text or tokens: the other side of `benchmarks/compare` and `benchmarks/gpu/run`.

Runs in the environment that holds LLM Compressor, as a process of its own; imports nothing of Layerpress. Everything
that the comparison does not fix (block size, damping, activation order, pipeline) keeps LLM Compressor's default; so does
the device, which is a GPU where PyTorch finds one.
"""
import argparse
import json
import time
from itertools import pairwise
from pathlib import Path

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--calibration", required=True, help="JSON lines with `text`, or what `layerpress prepare` wrote")
    parser.add_argument("--output", required=True, help="folder for the compressed checkpoint")
    parser.add_argument("--summary", required=True, help="file for the times, as JSON")
    parser.add_argument("--recipe", help="a recipe file, instead of --observer and --group-size")
    parser.add_argument("--observer", choices=("minmax", "mse"), default="minmax")
    parser.add_argument("--group-size", type=int, default=64)
    parser.add_argument("--dtype", default="auto", help="to compute in (default: the checkpoint's)")
    parser.add_argument("--samples", type=int, default=32)
    parser.add_argument("--max-seq-length", type=int, default=512)
    return parser.parse_args()


def read_samples(arguments: argparse.Namespace, tokenizer) -> Dataset:
    """Only the first samples, because LLM Compressor would otherwise choose the longest ones of the whole file."""
    if tokenizer is None:
        stored = load_file(arguments.calibration)
        bounds = pairwise(stored["sample_offsets"].tolist()[:arguments.samples + 1])
        samples = [stored["input_ids"][start:end][:arguments.max_seq_length].tolist() for start, end in bounds]
    else:
        with open(arguments.calibration, encoding="utf-8") as lines:
            texts = [json.loads(line)["text"] for line in lines if line.strip()][:arguments.samples]
        samples = [tokenizer(text, truncation=True, max_length=arguments.max_seq_length)["input_ids"] for text in texts]
    return Dataset.from_dict({"input_ids": samples, "attention_mask": [[1] * len(sample) for sample in samples]})


def make_recipe(arguments: argparse.Namespace) -> GPTQModifier | str:
    if arguments.recipe is not None:
        return arguments.recipe
    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": arguments.group_size}
    if arguments.observer == "mse":
        weights["observer"] = "mse"
    return GPTQModifier(config_groups={"group_0": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"])


def main() -> None:
    arguments = parse_arguments()
    load_start = time.perf_counter()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype)
    tokenizer = None if arguments.calibration.endswith(".safetensors") else AutoTokenizer.from_pretrained(arguments.model)
    samples = read_samples(arguments, tokenizer)
    oneshot_start = time.perf_counter()
    processor = tokenizer or object()  # there must be one, though tokens need none
    oneshot(model=model, processor=processor, dataset=samples, recipe=make_recipe(arguments),
            max_seq_length=arguments.max_seq_length, num_calibration_samples=arguments.samples,
            shuffle_calibration_samples=False, batch_size=1)
    save_start = time.perf_counter()
    model.save_pretrained(arguments.output, save_compressed=True)
    if tokenizer:
        tokenizer.save_pretrained(arguments.output)
    end = time.perf_counter()
    Path(arguments.summary).write_text(json.dumps({
        "load_seconds": oneshot_start - load_start,
        "oneshot_seconds": save_start - oneshot_start,
        "save_seconds": end - save_start,
        "samples": len(samples),
        "tokens": sum(map(len, samples["input_ids"])),
        "peak_device_bytes": torch.cuda.max_memory_allocated(),
        "reserved_device_bytes": torch.cuda.max_memory_reserved(),
    }))


if __name__ == "__main__":
    main()
