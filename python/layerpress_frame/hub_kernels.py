"""Kernels that a config.json names: transformers would fetch them from the hub and run their code."""

from __future__ import annotations

from typing import Any, Optional


def hub_kernel(config: Any) -> Optional[str]:
    """The first `..._implementation` in a config.json, or in a part of it, that is a repository."""
    if not isinstance(config, dict):
        return None
    for key, value in config.items():
        if key.endswith("_implementation"):
            for name in value.values() if isinstance(value, dict) else (value,):
                if isinstance(name, str) and "/" in name:
                    return name
        if found := hub_kernel(value):
            return found
    return None
