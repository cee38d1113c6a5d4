"""Compressed checkpoints that several tests open."""

import pytest
from support import compressed_cases, preset_runs


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


@pytest.fixture(scope="session")
def preset_run(tmp_path_factory):
    """The run of each preset by name."""
    return preset_runs.make(tmp_path_factory.mktemp("presets"))
