"""A model of several layers, and tokens that keep the program busy with it for about a second."""

import torch

from support import program, tiny_models

LAYERS = 8
SUBGRAPHS = LAYERS + 2  # embedding, layers, head


def save(folder, layers=LAYERS, samples=16):
    """Saves `model` and `tokens.safetensors` in `folder`; returns the model."""
    settings = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": layers, "max_position_embeddings": 512}
    tiny_models.save(folder / "model", dtype=torch.bfloat16, **settings)
    program.write_token_file(folder / "tokens.safetensors", tiny_models.random_samples([256] * samples))
    return folder / "model"


def gptq(model):
    """GPTQ of it, the same bytes every time."""
    return ["--group-size", "32", "--dataset", model.with_name("tokens.safetensors"), "--threads", "1"]
