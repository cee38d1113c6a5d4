"""For every test: no network, threads that sleep while they wait for others, so that small work stays quick on a busy machine, Python
helpers that keep what they compile, and which tests may run beside each other."""

import os

import pytest

# Before any Hugging Face package and any OpenMP is loaded.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ["OMP_WAIT_POLICY"] = "passive"
# An export imports 3,800 modules. With this variable, each of many processes would compile them again, which takes half of its time.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_collection_modifyitems(items):
    """Tests of a file share fixtures, so that one worker runs them; several ranks would stand in other ranks' way."""
    for item in items:
        group = "distributed" if "distributed" in item.path.parts else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
