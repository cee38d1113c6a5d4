#!/usr/bin/env python3
"""Runs every recipe of grid.py through LLM Compressor and writes what it makes of them to peer.json.

    scripts/setup --peer
    .venv-peer/bin/python tests/conformance/record_peer.py [NAME ...]     some recipes: prints them instead
"""

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
sys.path.insert(0, str(HERE.parent))

import grid  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
import written  # noqa: E402
from small_model import save_model  # noqa: E402

SEED_TOKENS = [32, 32, 32, 32]


def calibration_data():
    from support import tiny_models
    from torch.utils.data import DataLoader

    samples = tiny_models.random_samples(SEED_TOKENS)
    rows = [{"input_ids": torch.tensor(sample), "attention_mask": torch.ones_like(torch.tensor(sample))} for sample in samples]
    return DataLoader(rows, batch_size=1)


def compress(folder, recipe, output):
    """Saves what oneshot() makes of the model under a recipe."""
    from llmcompressor import oneshot

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    oneshot(model=model, recipe=json.dumps(recipe), dataset=calibration_data(), num_calibration_samples=4, max_seq_length=32)
    model.save_pretrained(output, save_compressed=True)


def outcome_of(folder, name, recipe):
    """{"refused": why}, {"unchanged": True}, or what was written."""
    with tempfile.TemporaryDirectory() as output:
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                compress(folder, recipe, output)
        except Exception as error:  # whatever it raises, the recipe was refused
            return {"refused": f"{type(error).__name__}: {first_line(str(error))}"}
        output = Path(output)
        config = json.loads((output / "config.json").read_text()).get("quantization_config")
        if config is None:
            return {"unchanged": True}
        original = written.read_tensors(folder / "model.safetensors")
        tensors = written.read_tensors(output / "model.safetensors")
        kept = {"recipe.yaml": (output / "recipe.yaml").read_text()} if name in grid.KEPT else {}
        return {**written.summary(config, tensors, original), **kept}


def first_line(message):
    """Its first line that says something, at most 160 characters."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return " | ".join(lines[:3])[:160]


def main(names):
    import loguru

    loguru.logger.remove()
    torch.set_num_threads(1)
    recipes = grid.recipes()
    with tempfile.TemporaryDirectory() as parent:
        folder = save_model(Path(parent) / "model")
        results = {}
        for name in names or recipes:
            results[name] = outcome_of(folder, name, recipes[name])
            loguru.logger.remove()
            print(f"{len(results)}/{len(names or recipes)} {name}", file=sys.stderr)
        record = {"llmcompressor": version("llmcompressor"), "compressed-tensors": version("compressed-tensors"),
                  "model": written.digest(written.read_tensors(folder / "model.safetensors"), "")}
    if names:
        print(json.dumps(results, indent=1))
        return
    record["layouts"] = tabulate(results, "layout")
    record["ignored"] = tabulate(results, "ignore")
    record["configs"] = tabulate(results, "config")
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(result)}" for name, result in results.items())
    head = "".join(f" {json.dumps(key)}: {rows(value)},\n" for key, value in record.items())
    (HERE / "peer.json").write_text(f'{{\n{head} "recipes": {{\n{lines}\n }}\n}}\n')


def rows(value):
    """A table has a line for each entry."""
    return json.dumps(value) if isinstance(value, str) else "[\n" + ",\n".join(f"  {json.dumps(row)}" for row in value) + "\n ]"


def tabulate(results, key):
    """Puts numbers in place of what many recipes share; returns the table."""
    table = []
    for result in results.values():
        if key in result:
            if result[key] not in table:
                table.append(result[key])
            result[key] = table.index(result[key])
    return table


def version(package):
    from importlib.metadata import version as of

    return of(package)


if __name__ == "__main__":
    main(sys.argv[1:])
