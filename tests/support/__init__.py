"""Parts that several tests share: checkpoints, runs of the program and their results. `pytest.ini` makes it importable."""
