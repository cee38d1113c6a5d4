"""Heads that the config ties to the embedding although the checkpoint stores another weight for them."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from .stored_tensors import same_values


def untie_own_head(model_class, config, folder: Path, stored: dict) -> bool:
    """Unties a config whose checkpoint stores a head that differs from the embedding, as transformers computes it; returns whether it
    did."""
    tied = getattr(model_class, "_tied_weights_keys", None)
    text = config.get_text_config()
    if not isinstance(tied, dict) or not getattr(text, "tie_word_embeddings", False):
        return False
    for head, embedding in tied.items():
        heads, embeddings = (_stored_as(name, stored) for name in (head, embedding))
        if len(heads) == len(embeddings) == 1 and not same_values(folder, heads[0], embeddings[0], stored):
            text.tie_word_embeddings = config.tie_word_embeddings = False
            return True
    return False


def own_heads(config: dict, folder: Path, stored: dict) -> list[tuple[str, str]]:
    """Pairs of stored tensors that a config may tie as head and embedding, and that differ: a graph depends on it. Knows no class, so that
    it needs no import of transformers."""
    texts = [text for text in (config, config.get("text_config")) if isinstance(text, dict)]
    if all(text.get("tie_word_embeddings") is False for text in texts):
        return []
    tables = sorted(name for name, (_, shape) in stored.items() if len(shape) == 2 and not any(map(str.isdigit, name.split("."))))
    return [pair for pair in combinations(tables, 2) if stored[pair[0]][1] == stored[pair[1]][1] and not same_values(folder, *pair, stored)]


def _stored_as(name: str, stored: dict) -> list[str]:
    """Checkpoints may have other names in front of the module's."""
    end = ".".join(name.split(".")[-2:])
    return [other for other in stored if other == end or other.endswith("." + end)]
