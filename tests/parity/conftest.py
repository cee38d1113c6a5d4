"""Imports beside these tests, and compressed checkpoints that several of them open."""

import os
import sys
from pathlib import Path

import pytest

# No test may reach for the network; set before any Hugging Face package is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
# Threads that wait for others sleep, so that small work stays quick on a busy machine.
os.environ["OMP_WAIT_POLICY"] = "passive"
sys.path.insert(0, str(Path(__file__).resolve().parent))

import compressed_cases  # noqa: E402


@pytest.fixture(scope="session")
def compressed_by_name(tmp_path_factory):
    parent, made = tmp_path_factory.mktemp("compressed"), {}

    def get(name):
        if name not in made:
            made[name] = compressed_cases.Compressed(name, parent / name.replace(" ", "-"))
        return made[name]

    return get


@pytest.fixture(params=list(compressed_cases.CASES))
def compressed(request, compressed_by_name):
    """Every case of compressed_cases, each compressed once."""
    return compressed_by_name(request.param)
