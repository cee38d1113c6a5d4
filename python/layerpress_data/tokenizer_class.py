"""The tokenizer class that transformers would choose for a checkpoint, as far as this is known without transformers.

transformers 5 does not always take tokenizer.json as it is: some classes keep its vocabulary and rebuild the rest.
"""

from __future__ import annotations

import importlib.util
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, Mapping, Optional

BACKEND = "TokenizersBackend"  # takes tokenizer.json as it is
_GENERIC = (BACKEND, "PreTrainedTokenizer", "PythonBackend")
_REBUILDING = ("LlamaTokenizer", "Qwen2Tokenizer", "GPT2Tokenizer")

# The class that transformers registers for a model type; None if it registers none.
REGISTERED_CLASSES: dict[str, Optional[str]] = {
    **dict.fromkeys(("exaone4", "falcon", "gpt_oss", "hunyuan_v1_dense", "lfm2", "llama", "llama4", "llama4_text", "minimax", "mllama",
                     "seed_oss", "smollm3")),
    **dict.fromkeys(("deepseek_v2", "deepseek_v3", "ernie4_5", "glm4", "glm4_moe", "granite", "granitemoe", "mistral", "mixtral",
                     "nemotron", "olmo2", "olmo3", "phi3", "phimoe", "stablelm"), BACKEND),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next"), "Qwen2Tokenizer"),
}
# Model types for which the class named by the checkpoint is ignored.
_REGISTERED_CLASS_WINS = ("qwen2",)
# Models, by hub id, whose checkpoints name a wrong class.
_BACKEND_IDS = ("deepseek-ai/deepseek-r1-distill-llama-*", "deepseek-ai/deepseek-coder-*")

# Settings that change how transformers loads the tokenizer and are not supported here.
_UNUSUAL_SETTINGS = ("auto_map", "fast_tokenizer_files", "fix_mistral_regex", "init_inputs")


def known_class(directory: Path, config: Mapping[str, Any], tokenizer_config: Mapping[str, Any]) -> Optional[str]:
    """Returns BACKEND or the name of a class that can be rebuilt; None if only transformers knows the class."""
    model_type = config.get("model_type")
    if model_type not in REGISTERED_CLASSES or any(tokenizer_config.get(name) for name in _UNUSUAL_SETTINGS):
        return None
    registered = REGISTERED_CLASSES[model_type]
    if registered == BACKEND and (directory / "tekken.json").exists() and importlib.util.find_spec("mistral_common"):
        return None
    if any(fnmatch(_hub_id(directory), pattern) for pattern in _BACKEND_IDS):
        return BACKEND
    named = tokenizer_config.get("tokenizer_class") or config.get("tokenizer_class")
    if named is None:
        return registered or BACKEND
    if not isinstance(named, str):
        return None
    chosen = named.removesuffix("Fast")
    if registered is not None and chosen != registered:
        if registered == BACKEND or model_type in _REGISTERED_CLASS_WINS:
            chosen = registered
    if chosen in _GENERIC:
        return BACKEND
    return chosen if chosen in _REBUILDING else None


def _hub_id(directory: Path) -> str:
    """The id of a checkpoint in the hub's cache, whose folders are named models--owner--name; otherwise the path."""
    for part in directory.absolute().parts:
        if match := re.fullmatch(r"models--(.+?)--(.+)", part):
            return f"{match[1]}/{match[2]}".lower()
    return str(directory).lower()
