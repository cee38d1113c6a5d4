"""Benchmarks of lm-evaluation-harness on checkpoints."""
