"""Logits by llama.cpp, of models at the places and with the keys that we give them, against those of transformers."""

import numpy as np
import pytest
from support import gguf_models, llama, tiny_models

# ggml takes GELU from a table of half-precision numbers.
TOLERANCES = {"gemma2": 0.03, "gemma3": 0.03}


@llama.needs_llama
@pytest.mark.nightly
@pytest.mark.parametrize("model", gguf_models.MODELS)
def test_logits_are_those_of_transformers(model, tmp_path):
    family, settings = gguf_models.MODELS[model]
    tiny_models.save(tmp_path, family, **settings)
    file = gguf_models.write(tmp_path, tmp_path / "model.gguf")
    tokens = [int(token) for token in tiny_models.random_samples([24])[0]]
    expected = tiny_models.logits(tmp_path, [tokens])[0]
    assert np.abs(expected).max() > 0.3
    assert np.abs(np.array(llama.logits(file, tokens)) - expected).max() < TOLERANCES.get(model, 1e-4)
