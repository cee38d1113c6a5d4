"""Calibration data: tokenizes the rows of a dataset like the checkpoint's tokenizer and writes one token file."""
