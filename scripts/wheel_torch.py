"""Says which versions of torch a wheel requires: the minor versions that its native parts are built with, which are the one of the
environment that builds it, and those that LAYERPRESS_WHEEL_TORCH names ("2.13 2.14"). scikit-build-core asks (pyproject.toml).
"""
import importlib.metadata
import os


def requirement(minors: list[str]) -> str:
    """One range, because consecutive minor versions are served; what a gap would hold is refused here."""
    numbers = sorted(tuple(map(int, minor.split("."))) for minor in minors)
    (major, first), last = numbers[0], numbers[-1][1]
    if numbers != [(major, minor) for minor in range(first, last + 1)]:
        raise ValueError(f"torch {', '.join(minors)} are not consecutive minor versions")
    return f"torch>={major}.{first},<{major}.{last + 1}"


def dynamic_metadata(settings: dict, project: dict) -> dict[str, list[str]]:
    minors = os.environ.get("LAYERPRESS_WHEEL_TORCH", "").split() or [".".join(importlib.metadata.version("torch").split(".")[:2])]
    return {"dependencies": [requirement(minors)]}


def dynamic_wheel(settings: dict) -> dict[str, bool]:
    return {"dependencies": True}
