"""What the room gguf says of models, from the program print_gguf."""

import json
import subprocess

from support.program import PROGRAM

PRINT_GGUF = PROGRAM.with_name("print_gguf")


def said(*arguments, text=""):
    """The JSON that print_gguf writes."""
    process = subprocess.run([PRINT_GGUF, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def refused(*arguments, text=""):
    """The line in which print_gguf refuses."""
    process = subprocess.run([PRINT_GGUF, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=300)
    assert process.returncode == 2 and process.stderr.count("\n") == 1, process.stderr
    return process.stderr


def architecture(config_file, names):
    """The architecture of a config.json, and the places of tensors."""
    return said("architecture", config_file, text="".join(f"{name}\n" for name in names))


def values(metadata):
    """Keys and values, without the values' types."""
    return {key: value for key, (kind, value) in metadata}
