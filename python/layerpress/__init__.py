"""Layerpress compresses large language models in one shot, layer by layer.

    from layerpress import oneshot
    from layerpress.modifiers import GPTQModifier

    oneshot(model="models/llama", dataset=dataset, recipe=GPTQModifier(scheme="W4A16", ignore=["lm_head"]), output_dir="llama-w4a16")
"""

import os

# As in layerpress/cli/launcher.cpp: threads that wait ask again for some dozens of microseconds before they sleep. OpenMP reads this when
# it is loaded, so it has no effect where torch was imported before.
if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    os.environ["GOMP_SPINCOUNT"] = "2000"

from ._native import Distributed, __version__
from .errors import (
    CheckpointError,
    DamagedWeightsError,
    DataError,
    DistributedError,
    Error,
    InternalError,
    InterruptedError,
    IoError,
    MemoryError,
    RecipeError,
    UsageError,
)
from .loaded_model import dispatch_for_generation
from .model_free import model_free_ptq
from .module_paths import install as _install
from .ranks import get_rank_partition, init_dist, load_context, load_offloaded_model
from .reports import Evaluation, Inspection, MixedPrecision, Plan, Report, Sensitivity, Summary, Verification
from .runs import evaluate, inspect, mixed_precision, oneshot, picture, plan, prepare, verify
from .sessions import active_session, create_session, reset_session

_install(__name__)

__all__ = [
    "CheckpointError", "DamagedWeightsError", "DataError", "Distributed", "DistributedError", "Error", "Evaluation", "Inspection",
    "InternalError", "InterruptedError", "IoError", "MemoryError", "MixedPrecision", "Plan", "RecipeError", "Report", "Sensitivity",
    "Summary", "UsageError", "Verification", "__version__", "active_session", "create_session", "dispatch_for_generation", "evaluate",
    "get_rank_partition", "init_dist", "inspect", "load_context", "load_offloaded_model", "mixed_precision", "model_free_ptq", "oneshot",
    "picture", "plan", "prepare", "reset_session", "verify"]
