"""A model without weights -> the program that torch.export records."""

from __future__ import annotations

import contextlib
import copy
import inspect
import sys
from collections.abc import Sequence

import torch

from . import hooks, masks, skeleton
from .errors import ExportError, one_line

# In the order of preference: one node per attention and per layer's experts; else the model's own attention. Its eager one
# knows everything that the model does; some models' sdpa leaves out what PyTorch's attention lacks.
_WAYS = (("hooks", hooks.NAME, hooks.NAME), ("eager", "eager", hooks.NAME), ("sdpa", "sdpa", hooks.NAME))


class Exported:
    """The program and the model that it was recorded from, and the most tokens of a sample for which that is the model, or None."""

    def __init__(self, built: skeleton.Skeleton, program, way: str, reasons: list[str], most: int | None = None):
        self.skeleton, self.program, self.way, self.reasons, self.most = built, program, way, reasons, most


class _Logits(torch.nn.Module):
    """Takes tensors only and returns the logits only."""

    def __init__(self, model, kinds: str | None):
        super().__init__()
        self.model, self.kinds = model, kinds
        self.options = {"use_cache": False} if _takes(model, "use_cache") else {}

    def forward(self, input_ids, position_ids=None):
        given = {} if position_ids is None else {"position_ids": position_ids}
        if self.kinds is not None:
            given[self.kinds] = torch.zeros_like(input_ids)
        result = self.model(input_ids=input_ids, **given, **self.options)
        return result.logits if hasattr(result, "logits") else result[0]


def _takes_positions(model) -> bool:
    """Whether positions are counted from 0 in each sample, so that they can be given. RoBERTa and its kin count otherwise."""
    own = any(hasattr(module, "create_position_ids_from_input_ids") for module in model.modules())
    return _takes(model, "position_ids") and not own


def _takes(model, name: str) -> bool:
    return name in inspect.signature(model.forward).parameters


def _fix_rotary(model) -> int | None:
    """Makes rotary embeddings whose frequencies follow the length of a sample keep those of short samples. Returns how many tokens these
    may have, or None."""
    limits = []
    for module in model.modules():
        kind, config = getattr(module, "rope_type", None), getattr(module, "config", None)
        stated = getattr(config, "rope_parameters", None)
        if kind == "dynamic":
            limits.append(int(module.original_max_seq_len))
        elif kind == "longrope" and isinstance(stated, dict):
            limits.append(int(stated["original_max_position_embeddings"]))
            if "short_mscale" in stated:
                _fix_short_scale(module, config, stated["short_mscale"])
        else:
            continue
        module.rope_type = "default"
    return min(limits, default=None)


def _fix_short_scale(module, config, scale: float) -> None:
    """Makes PhiMoE's rotary embedding, which chooses its scale by the positions' values, take that of short samples."""
    frequencies = module.rope_init_fn
    module.rope_init_fn = lambda config_of_module: (frequencies(config)[0], scale)
    module.config = copy.copy(config)
    module.config.rope_parameters = {**config.rope_parameters, "rope_type": "default"}


def _kinds_of_tokens(model_class) -> str | None:
    """The argument that tells tokens of images, where masks depend on it: all of text, they show the kinds of masks."""
    if "block_sequence_ids" not in inspect.getsource(sys.modules[model_class.__module__]):
        return None
    return next((name for name in ("token_type_ids", "mm_token_type_ids") if _takes(model_class, name)), None)


def _attempts(model_class, images: bool) -> list[tuple]:
    """Ways, best first, each with the argument of _kinds_of_tokens or none."""
    kinds = _kinds_of_tokens(model_class) if images else None
    return ([] if kinds is None else [(*_WAYS[0], kinds)]) + [(*way, None) for way in _WAYS]


def export_model(model_class, config, dtype: torch.dtype, images: bool, tokens: int, ways: Sequence[str] = ()) -> Exported:
    """Records the model, with a sample of so many tokens, in the best way that succeeds, or the best of some. With `images`,
    nodes take what a vision part makes."""
    hooks.register()
    reasons: list[str] = []
    for way, attention, experts, kinds in _attempts(model_class, images):
        if ways and way not in ways:
            continue
        try:
            hooks.EXPERTS.gates.clear()
            built = skeleton.build(model_class, config, dtype, attention, experts)
            most = _fix_rotary(built.model)
            program = _export(built, images, kinds, tokens)
            masks.resolve(program.graph_module)
            return Exported(built, program, way, reasons, most)
        except Exception as fault:  # what a foreign model does cannot be foreseen
            reasons.append(f"{way}: {type(fault).__name__}: {one_line(fault, 240)}")
    raise ExportError(f"{model_class.__name__} cannot be exported ({'; '.join(reasons)}); try a newer transformers")


def _position_axes(model) -> int:
    """How many positions a token has: three where time, height and width turn parts of the rotary embedding."""
    rope = getattr(model.config.get_text_config(), "rope_parameters", None)
    stated = rope.get("mrope_section") if isinstance(rope, dict) else None
    own = (getattr(module, "mrope_section", None) for module in model.modules())
    return next((len(sections) for sections in (stated, *own) if isinstance(sections, (list, tuple))), 1)


def _takes_images(model) -> None:
    """Nodes take what the vision part makes: embeddings, and what is added behind some layers. The latter are given by
    their numbers."""
    model.get_input_embeddings().register_forward_hook(lambda module, given, made: hooks.OPS.merge_images(made))
    layers = getattr(getattr(model.config, "vision_config", None), "deepstack_visual_indexes", None) or ()
    for module in model.modules():
        if hasattr(module, hooks.ADDITION):
            module.register_forward_pre_hook(
                lambda module, given, options: (given, options | {hooks.ADDED: range(len(layers))}), with_kwargs=True)


def _export(built: skeleton.Skeleton, images: bool, kinds: str | None, tokens: int):
    from transformers.exporters import exporter_dynamo
    from transformers.exporters.utils import apply_patches

    model = built.model
    with built.mode:
        inputs = {"input_ids": torch.zeros((1, tokens), dtype=torch.long)}
        if _takes_positions(model):
            axes = _position_axes(model) if images else 1
            inputs["position_ids"] = torch.zeros((axes, 1, tokens)[axes == 1:], dtype=torch.long)
    if images:
        _takes_images(model)
    shapes = {name: {value.dim() - 1: torch.export.Dim.DYNAMIC} for name, value in inputs.items()}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(apply_patches("dynamo"))
        stack.enter_context(exporter_dynamo.reset_model_state(model))
        stack.enter_context(exporter_dynamo.patch_model_config(model, {}))
        stack.enter_context(hooks.kernels())
        program = torch.export.export(_Logits(model, kinds), (), inputs, dynamic_shapes=shapes, strict=False,
                                      prefer_deferred_runtime_asserts_over_guards=True)
        return program.run_decompositions({})  # no operation in place is left
