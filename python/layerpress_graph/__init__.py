"""The graph of a model that transformers can build, without its weights."""
