import pytest


@pytest.fixture
def results(tmp_path):
    """The folder that outputs are made in; empty."""
    folder = tmp_path / "results"
    folder.mkdir()
    return folder
