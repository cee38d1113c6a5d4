"""Layerpress compresses large language models in one shot, layer by layer.

    from layerpress import oneshot
    from layerpress.modifiers import GPTQModifier

    oneshot(model="models/llama", dataset=dataset, recipe=GPTQModifier(scheme="W4A16", ignore=["lm_head"]), output_dir="llama-w4a16")
"""

from ._native import Distributed, __version__
from .errors import (
    CheckpointError, DamagedWeightsError, DataError, DistributedError, Error, InternalError, InterruptedError, IoError, MemoryError,
    RecipeError, UsageError)
from .ranks import get_rank_partition, init_dist, load_offloaded_model
from .reports import Evaluation, Inspection, Plan, Report, Summary
from .runs import evaluate, inspect, oneshot, picture, plan, prepare

__all__ = [
    "CheckpointError", "DamagedWeightsError", "DataError", "Distributed", "DistributedError", "Error", "Evaluation", "Inspection",
    "InternalError", "InterruptedError", "IoError", "MemoryError", "Plan", "RecipeError", "Report", "Summary", "UsageError",
    "__version__", "evaluate", "get_rank_partition", "init_dist", "inspect", "load_offloaded_model", "oneshot", "picture", "plan",
    "prepare"]
