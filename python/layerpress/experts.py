"""What scripts for LLM Compressor do to mixtures of experts before a run. Layerpress does it inside of oneshot(), whose argument
moe_calibrate_all_experts says which tokens an expert is calibrated on."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator


def replace_modules_for_calibration(model: Any, *_: Any, **__: Any) -> Any:
    """Returns the model as it is: oneshot() calibrates each expert's linears without changing the model's modules."""
    return model


@contextlib.contextmanager
def moe_calibration_context(*_: Any, **__: Any) -> Iterator[None]:
    """Changes nothing: oneshot() itself sends all tokens to all experts, unless moe_calibrate_all_experts is False."""
    yield
