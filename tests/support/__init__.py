"""What several tests share: checkpoints, runs of the program and what they leave. `pytest.ini` makes it importable."""
