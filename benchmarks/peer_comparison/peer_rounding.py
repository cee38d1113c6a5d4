"""Rounds a checkpoint's linears to nearest with LLM Compressor, without data: the other side of equal_results.py.

Runs in the environment that holds LLM Compressor, as a process of its own; imports nothing of Layerpress.
"""
import argparse
import json

from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--output", required=True, help="folder for the compressed checkpoint")
    parser.add_argument("--dtype", required=True, help="in which the model is loaded and scales are computed")
    parser.add_argument("--group", required=True, help="the config group, as JSON")
    arguments = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=arguments.dtype)
    oneshot(model=model, recipe=QuantizationModifier(config_groups={"group_0": json.loads(arguments.group)},
                                                     ignore=["lm_head"]))
    model.save_pretrained(arguments.output, save_compressed=True)


if __name__ == "__main__":
    main()
