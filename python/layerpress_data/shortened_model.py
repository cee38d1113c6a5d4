"""Models of images and text without the layers and weights of their language model."""

from __future__ import annotations

import contextlib

import torch

from .errors import DataError

_PARTS = ("language_model", "text_model")  # the latter in Idefics 3 and SmolVLM


class Captured(Exception):
    """The call of the language model: its arguments, and the token ids that were embedded, if any."""

    def __init__(self, arguments: dict, token_ids):
        super().__init__()
        self.arguments, self.token_ids = arguments, token_ids


class _UnreadEmbedding(torch.nn.Module):
    """An embedding without its weight, all of whose rows have one value. It keeps the ids of its last call."""

    def __init__(self, embedding: torch.nn.Embedding, value: float):
        super().__init__()
        self.shape, self.dtype, self.value, self.ids = tuple(embedding.weight.shape), embedding.weight.dtype, value, None
        self.num_embeddings, self.embedding_dim, self.padding_idx = *self.shape, None

    @property
    def weight(self):
        return torch.full((1, 1), self.value, dtype=self.dtype).expand(self.shape)

    def forward(self, ids):
        self.ids = ids.clone()
        return torch.full((*ids.shape, self.embedding_dim), self.value, dtype=self.dtype)


def shortened(model_class):
    """The class without the weights of the language model, whose call raises Captured. Embeddings of text are NaN, so that
    those of images can be told from them."""

    class Shortened(model_class):
        def __init__(self, config, *args, **options):
            super().__init__(config, *args, **options)
            _shorten(self)

    Shortened.__name__, Shortened.__module__ = model_class.__name__, model_class.__module__
    return Shortened


def _language_model(model):
    """The part of a model that gets embeddings, and its embedding of tokens."""
    paths = [path for path, _ in model.named_modules() if path.split(".")[-1] in _PARTS]
    if len(paths) != 1:
        raise DataError(f"{type(model).__name__} has no part '{_PARTS[0]}': samples with images are not possible with this "
                        "kind of model: pass text only")
    language = model.get_submodule(paths[0])
    return language, language.get_input_embeddings()


def _counts_differences(language, main) -> bool:
    """Whether differences of positions are all that matters, as to rotary embeddings and biases: no other embedding is there."""
    return not any(isinstance(module, torch.nn.Embedding) and module is not main for module in language.modules())


def _capturing(text):
    def capture(*positional, **arguments):
        raise Captured(arguments, text.ids)

    return capture


@contextlib.contextmanager
def stopped_at_language_model(model):
    """Inside, a call of a whole model raises Captured where it calls its language model, and embeddings of text are NaN. The model
    is as before afterwards."""
    language, main = _language_model(model)
    model.counts_differences = _counts_differences(language, main)
    text, replaced = _UnreadEmbedding(main, float("nan")), []
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if child is main or isinstance(child, torch.nn.Embedding) and _is_inside(child, language):
                replaced.append((module, name, child))
    for module, name, child in replaced:
        module._modules[name] = text if child is main else _UnreadEmbedding(child, 0.0)
    before = language.__dict__.get("forward")
    language.forward = _capturing(text)
    try:
        yield
    finally:
        del language.forward, model.counts_differences
        if before is not None:
            language.forward = before
        for module, name, child in replaced:
            module._modules[name] = child


def _is_inside(module, whole) -> bool:
    return any(each is module for each in whole.modules())


def _leave_out(language, main) -> _UnreadEmbedding:
    """Removes the weights of a language model; returns what stands for its embedding of tokens `main`."""
    text = _UnreadEmbedding(main, float("nan"))
    for module in list(language.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, torch.nn.Embedding):
                module._modules[name] = text if child is main else _UnreadEmbedding(child, 0.0)
            elif isinstance(child, torch.nn.ModuleList):
                module._modules[name] = torch.nn.ModuleList()
            elif next(child.parameters(recurse=False), None) is not None:
                module._modules[name] = torch.nn.Identity()
        for name, _ in list(module.named_parameters(recurse=False)):
            delattr(module, name)
    return text


def _shorten(model) -> None:
    language, main = _language_model(model)
    head = model.get_output_embeddings()
    model.counts_differences = _counts_differences(language, main)
    text = _leave_out(language, main)
    for module in model.modules():
        for name, child in list(module.named_children()):
            if child is head:
                module._modules[name] = torch.nn.Identity()
        if hasattr(module, "all_tied_weights_keys"):
            module.all_tied_weights_keys = {}
        module._tied_weights_keys = None
    language.forward = _capturing(text)
