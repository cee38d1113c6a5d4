"""A page about a run: what was done, where time and memory went, what every linear lost."""
