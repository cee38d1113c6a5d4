"""One run for each preset of compressed-tensors: rounded to nearest with min-max scales, as LLM Compressor does without data."""

import functools
import json

from support import program, tiny_models

# Blocks of 128 x 128 and groups of 128 divide all weights.
SIZES = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1, "num_key_value_heads": 4}


class PresetRun:
    """A model and what `layerpress oneshot` made of it with a preset."""

    def __init__(self, name, model, folder, samples):
        self.name, self.model = name, model
        self.folder = program.oneshot(model, folder, "--algorithm", "rtn", "--observer", "minmax", "--scheme", name,
                                      "--dataset", samples)

    @functools.cached_property
    def config(self):
        return json.loads((self.folder / "config.json").read_text())["quantization_config"]

    @property
    def format(self):
        """As vLLM and LLM Compressor expect it."""
        for prefix, found in (("NVFP4", "nvfp4-pack-quantized"), ("MXFP4", "mxfp4-pack-quantized"), ("MXFP8", "mxfp8-quantized"),
                              ("FP8", "float-quantized"), ("W4AFP8", "pack-quantized")):
            if self.name.startswith(prefix):
                return found
        return "pack-quantized" if "A16" in self.name else "int-quantized"

    @property
    def largest_error(self):
        """Of weights, relative: with this many bits."""
        return {2: 0.7, 3: 0.4, 4: 0.2}.get(next(iter(self.config["config_groups"].values()))["weights"]["num_bits"], 0.1)


def make(parent):
    """A function that gives each preset's run, and runs it once."""
    model = tiny_models.save(parent / "model", **SIZES)
    samples = program.write_samples(parent / "samples.jsonl", tiny_models.random_samples([40, 17]))
    return functools.cache(lambda name: PresetRun(name, model, parent / name, samples))
