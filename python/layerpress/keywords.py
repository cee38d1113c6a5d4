"""LLM Compressor's keywords of oneshot(), in terms of Layerpress's options. docs/recipes.md tells what stands for each."""

from __future__ import annotations

from typing import Any

from .errors import UsageError
from .progress import logger

ALL_SAMPLES = 2**31 - 1  # more than any dataset has

# Another word for the same option.
RENAMED = {
    "precision": "dtype",
    "trust_remote_code_model": "trust_remote_code",
    "splits": "dataset_split",
    "concatenate_data": "concatenate",
    "shuffle_calibration_samples": "shuffle",
    "output_dir": "output",
}

# What they arrange is arranged otherwise here, and the result is the same.
WITHOUT_EFFECT = {
    "clear_sparse_session": False, "overwrite_cache": False, "preprocessing_num_workers": None, "dataloader_num_workers": 0,
    "batch_size": 1, "pad_to_max_length": False, "quantization_aware_calibration": True, "sequential_prefetch": False,
    "tracing_ignore": None, "streaming": False, "remove_columns": None, "log_dir": None,
    "min_tokens_per_module": None,
}

# Only their defaults can be had.
ONLY_DEFAULT = {
    "config_name": (None, "the model's own config is what its weights fit"),
    "tie_word_embeddings": (True, "a shared embedding stays shared unless it is compressed"),
    "save_compressed": (True, "results are always compressed"),
    "recipe_args": (None, "write the values into the recipe"),
    "stage": (None, "all stages of a recipe run"),
    "propagate_error": (True, "pipeline='basic' calibrates on the original weights"),
    "raw_kwargs": (None, "load the data with the datasets package and pass it"),
    "dvc_data_repository": (None, "load the data with the datasets package and pass it"),
}

# oneshot() itself reads them.
OWN = {"tokenizer": None, "processor": None, "model_revision": "main", "dataset_config_name": None, "dataset_path": None,
       "preprocessing_func": None, "data_collator": "truncation"}

ALL = {**dict.fromkeys(RENAMED), **WITHOUT_EFFECT, **{name: default for name, (default, _) in ONLY_DEFAULT.items()}, **OWN}


def to_options(keywords: dict[str, Any]) -> dict[str, Any]:
    """Keywords without those that only LLM Compressor has."""
    options: dict[str, Any] = {}
    for name, value in keywords.items():
        if name in WITHOUT_EFFECT:
            if value != WITHOUT_EFFECT[name]:
                logger.info("%s has no effect here: docs/recipes.md says what takes its place", name)
        elif name == "propagate_error" and value is False and keywords.get("pipeline") not in ("sequential", "independent"):
            if keywords.get("pipeline") is None:
                logger.info("propagate_error=False: pipeline='basic' calibrates on the original weights")
                options["pipeline"] = "basic"
        elif name in ONLY_DEFAULT:
            default, reason = ONLY_DEFAULT[name]
            if value != default and value != {}:
                raise UsageError(f"[python.oneshot] {name}={value!r} is not possible: {reason}")
        elif name == "num_calibration_samples" and value is None:
            options[name] = ALL_SAMPLES
        elif value is not None:
            option = RENAMED.get(name, name)
            if option in options:
                raise UsageError(f"[python.oneshot] {option}: is given twice, once by LLM Compressor's name; leave one out")
            options[option] = _split(value) if option == "dataset_split" else value
    return options


def _split(splits: Any) -> str:
    """LLM Compressor takes a name, a list of one, or {"calibration": name}."""
    if isinstance(splits, dict):
        splits = list(splits.values())
    if isinstance(splits, (list, tuple)) and len(splits) == 1:
        splits = splits[0]
    if not isinstance(splits, str):
        raise UsageError(f"[python.oneshot] splits: {splits!r} is not one split; name the one to calibrate on")
    return splits
