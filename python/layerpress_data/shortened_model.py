"""Models of images and text without the layers and weights of their language model."""

from __future__ import annotations

import torch

from .errors import DataError

_PART = "language_model"


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
    paths = [path for path, _ in model.named_modules() if path.split(".")[-1] == _PART]
    if len(paths) != 1:
        raise DataError(f"{type(model).__name__} has no part '{_PART}': samples with images are not possible with this "
                        "kind of model: pass text only")
    language, head = model.get_submodule(paths[0]), model.get_output_embeddings()
    main = language.get_input_embeddings()
    others = [module for module in language.modules() if isinstance(module, torch.nn.Embedding) and module is not main]
    model.counts_differences = not others  # no embedding of positions: rotary ones and biases know differences only
    text = _leave_out(language, main)
    for module in model.modules():
        for name, child in list(module.named_children()):
            if child is head:
                module._modules[name] = torch.nn.Identity()
        if hasattr(module, "all_tied_weights_keys"):
            module.all_tied_weights_keys = {}
        module._tied_weights_keys = None

    def capture(*positional, **arguments):
        raise Captured(arguments, text.ids)

    language.forward = capture
