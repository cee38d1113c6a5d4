#!/usr/bin/env python3
"""Writes peer_names.json: the modifiers, observers, schemes, pipelines and entry points of an installed LLM Compressor.

    scripts/setup --peer
    .venv-peer/bin/python tests/conformance/record_names.py

It reads the sources and imports only compressed-tensors, so that it needs no accelerator and takes a second.
"""

import ast
import importlib.util
import json
from importlib.metadata import version
from pathlib import Path

from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES


def parsed(folder):
    return [ast.parse(path.read_text()) for path in sorted(folder.rglob("*.py"))]


def modifiers(root):
    """Classes that recipes can name; classes from which only others derive are not among them."""
    names = {node.name for tree in parsed(root / "modifiers") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return sorted(name for name in names if name.endswith("Modifier") and name != "Modifier")


def registered(folder):
    """What @REGISTRY.register("name") decorates."""
    calls = (call for tree in parsed(folder) for node in ast.walk(tree)
             for call in getattr(node, "decorator_list", []) if isinstance(call, ast.Call))
    return sorted({call.args[0].value for call in calls if getattr(call.func, "attr", "") == "register" and len(call.args) == 1})


def exported(path):
    return {alias.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
            for alias in node.names if alias.name[0].islower() or alias.name == "Oneshot"}


def main():
    root = Path(importlib.util.find_spec("llmcompressor").submodule_search_locations[0])
    entry_points = (exported(root / "__init__.py") | exported(root / "entrypoints" / "__init__.py")) - {
        "configure_logger", "logger", "version"}
    names = {"llmcompressor": version("llmcompressor"), "modifier": modifiers(root), "observer": registered(root / "observers"),
             "scheme": sorted(PRESET_SCHEMES), "pipeline": registered(root / "pipelines"), "entry point": sorted(entry_points)}
    Path(__file__).with_name("peer_names.json").write_text(json.dumps(names, indent=1) + "\n")


if __name__ == "__main__":
    main()
