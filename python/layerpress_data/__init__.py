"""Calibration data: rows of a dataset, tokenized as the checkpoint's tokenizer does, written as one token file."""
