"""Runs LLM Compressor with recipes that results of Layerpress have, on the same samples.

    .venv-peer/bin/python tests/conformance/peer_recipes.py MODEL SAMPLES.json RECIPE OUTPUT [RECIPE OUTPUT ...]
"""

import json
import os
import sys
from itertools import pairwise
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")

import torch
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM


def compress(model_folder, samples, recipe, output):
    from llmcompressor import oneshot

    rows = [{"input_ids": torch.tensor(sample), "attention_mask": torch.ones(len(sample), dtype=torch.long)} for sample in samples]
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype="auto")
    oneshot(model=model, recipe=recipe, dataset=DataLoader(rows, batch_size=1), num_calibration_samples=len(rows),
            max_seq_length=max(map(len, samples)))
    model.save_pretrained(output, save_compressed=True)


def main():
    model, samples, *places = sys.argv[1:]
    for recipe, output in list(pairwise(places))[::2]:
        compress(model, json.loads(Path(samples).read_text()), recipe, output)


if __name__ == "__main__":
    main()
