"""Whether transformers has a language model for a configuration, found without importing transformers."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from .errors import ExportError

_LANGUAGE_MODELS = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "WithLMHead", "GenerationDecoder")


def check_known(config: dict, trust_remote_code: bool) -> None:
    """Raises ExportError for a class or a model_type that transformers does not list."""
    if config.get("auto_map") and trust_remote_code:
        return
    found = importlib.util.find_spec("transformers")
    if found is None or not found.submodule_search_locations:
        raise ExportError("the Python package 'transformers' is missing: install it with: pip install transformers")
    listed = Path(found.submodule_search_locations[0], "models", "auto", "modeling_auto.py").read_text(encoding="utf-8")
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""
    model_type = config.get("model_type")
    if name and f'"{name}"' not in listed:
        if config.get("auto_map"):
            raise ExportError("the model is defined by Python code in its folder (auto_map): read that code, and if you "
                              "trust it pass --trust-remote-code")
        raise ExportError(f"transformers has no class '{name[:80]}'")
    if name and not name.endswith(_LANGUAGE_MODELS):
        raise ExportError(f"class '{name}' is not a language model; in Python, pass a torch.nn.Module around its body, which returns a "
                          "row per token")
    if not isinstance(model_type, str) or f'"{model_type}"' not in listed:
        raise ExportError(f"transformers has no model_type '{str(model_type)[:80]}'")
