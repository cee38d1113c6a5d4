"""What transformers lets one register in place of attention, masks and experts, and its kernels that have names."""

from __future__ import annotations

import contextlib
import sys

import torch

from . import operators  # noqa: F401 (defines the operators)
from .errors import ExportError

NAME = "layerpress"
OPS = torch.ops.layerpress


class Experts:
    """The gates of the experts that were met while exporting, by the name in their nodes."""

    def __init__(self):
        self.gates = {}


EXPERTS = Experts()


def _mask_kind(mask_function) -> tuple[str, int]:
    """The kind of a mask and its window, from the closures that transformers composes."""
    from transformers import masking_utils

    def parts(function):
        name = function.__qualname__
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        if name.startswith("and_masks"):
            return [part for cell in cells for inner in cell for part in parts(inner)]
        if name.startswith("or_masks"):
            united = sorted(part for cell in cells for inner in cell for part in parts(inner))
            if united != [("block", 0), ("causal", 0)]:
                raise ExportError("a union of masks other than causal and of blocks is not known")
            return [("causal", 0), ("mutual", 0)]
        if name.startswith("blockwise_overlay"):
            return [("block", 0)]
        if function is masking_utils.causal_mask_function:
            return [("causal", 0)]
        if function is masking_utils.bidirectional_mask_function:
            return [("bidirectional", 0)]
        if name.startswith("sliding_window_overlay"):
            return [("sliding", int(cells[0]))]
        if name.startswith("chunked_overlay"):
            return [("chunked", next(cell for cell in cells if isinstance(cell, int)))]
        if name.startswith("remap_positions_for_packed_sequence"):  # each sample counts from 0
            return [part for cell in cells if callable(cell) for part in parts(cell)]
        if name.startswith("packed_sequence_mask_function"):
            return []  # attention nodes keep samples apart
        raise ExportError(f"a mask of kind '{name}' is not known")

    found = dict(parts(mask_function))
    if "block" in found or "mutual" in found and "chunked" in found:
        raise ExportError("a mask of blocks inside another one is not known")
    mutual = "mutual " if "mutual" in found else ""  # tokens of a block also attend to later ones of it
    for kind in ("sliding", "chunked"):
        if kind in found:
            if "bidirectional" in found:
                raise ExportError(f"a {kind} mask that looks ahead is not known")
            return mutual + kind, found[kind]
    return mutual + ("causal" if "causal" in found else "bidirectional"), 0


def _mask_hook(*args, mask_function=None, device=None, **options):
    kind, window = _mask_kind(mask_function)
    return OPS.mask(torch.empty((1,), device=device), kind, window)


def _attention_hook(module, query, key, value, attention_mask, scaling=None, dropout=0.0, is_causal=None, softcap=None,
                    sliding_window=None, s_aux=None, position_bias=None, **options):
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    kind, window = ("causal" if causal else "bidirectional"), 0
    if attention_mask is None and sliding_window:
        kind, window = "sliding", int(sliding_window)
    if attention_mask is not None:
        kind = "by mask" if tuple(attention_mask.shape) == (1, 1, 1, 1) else "given"
    return OPS.attention(query, key, value, attention_mask, position_bias, s_aux, float(scale), kind, window,
                         float(softcap or 0.0)), None


def _experts_hook(self, x, index, weights):
    name = f"{type(self).__module__}.{type(self).__qualname__}"
    gate_up = self.gate_up_proj if self.has_gate else self.up_proj
    bias = (self.gate_up_proj_bias if self.has_gate else self.up_proj_bias) if self.has_bias else None
    EXPERTS.gates[name] = (self._apply_gate if self.has_gate else self.act_fn, self)
    return OPS.experts(x, index, weights.to(x.dtype), gate_up, bias, self.down_proj,
                       self.down_proj_bias if self.has_bias else None, self.is_transposed, self.has_gate, name)


def register() -> None:
    """Makes the implementations known to transformers."""
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention_hook)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, _mask_hook)
    ALL_EXPERTS_FUNCTIONS.register(NAME, _experts_hook)


def _refuse(condition: bool, what: str) -> None:
    if condition:
        raise ExportError(f"{what} is asked for while exporting")


def _convolution(x, weight, bias=None, activation=None, **options):
    return OPS.causal_conv1d(x, weight, bias, activation or "")


def _gated_delta_rule(query, key, value, g, beta, chunk_size=64, initial_state=None, output_final_state=False,
                      use_qk_l2norm_in_kernel=False, **options):
    _refuse(initial_state is not None or output_final_state, "a recurrent state")
    groups = value.shape[2] // key.shape[2]
    if groups > 1:  # newer releases of transformers leave it to the kernel
        query, key = (heads.repeat_interleave(groups, dim=2) for heads in (query, key))
    return OPS.gated_delta_rule(query, key, value, g, beta, use_qk_l2norm_in_kernel), None


def _kimi_delta_attention(query, key, value, g, beta, chunk_size=64, initial_state=None, output_final_state=False,
                          use_qk_l2norm_in_kernel=False, **options):
    _refuse(initial_state is not None or output_final_state, "a recurrent state")
    return OPS.kimi_delta_attention(query, key, value, g, beta, use_qk_l2norm_in_kernel), None


def _mamba2(x, dt, A, B, C, chunk_size, D=None, dt_bias=None, initial_states=None, dt_softplus=False,
            dt_limit=(0.0, float("inf")), return_final_states=False, **options):
    _refuse(initial_states is not None or return_final_states, "a recurrent state")
    return OPS.mamba2_scan(x, dt, A, B, C, D, dt_bias, dt_softplus, float(dt_limit[0]), float(dt_limit[1]))


def _mamba(x, dt, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False, **options):
    _refuse(return_last_state, "a recurrent state")
    return OPS.selective_scan(x, dt, A, B, C, D, z, delta_bias, delta_softplus)


def _wkv(time_decay, time_first, key, value, state=None, return_state=False):
    _refuse(state is not None or return_state, "a recurrent state")
    return OPS.wkv(time_decay, time_first, key, value), None


def _rnn_scan(self, hidden_states, recurrent_gate, reset, recurrent_states, acc_dtype=torch.float32):
    _refuse(recurrent_states is not None, "a recurrent state")
    return OPS.linear_recurrence(hidden_states, recurrent_gate * ~reset), None


def _mlstm(self, query, key, value, igate, fgate, c_initial=None, n_initial=None, m_initial=None, **options):
    _refuse(c_initial is not None or n_initial is not None or m_initial is not None, "a recurrent state")
    return OPS.mlstm(query, key, value, igate, fgate, float(self.config.eps)), None


_KERNELS = {"causal_conv1d_fn": _convolution, "torch_chunk_gated_delta_rule": _gated_delta_rule,
            "chunk_kimi_delta_attention": _kimi_delta_attention, "mamba2_chunk_scan": _mamba2,
            "mamba_selective_scan": _mamba, "rwkv_linear_attention": _wkv,
            "sequential_experts_gemm": OPS.grouped_product}


def _llama4_mixture(self, x):
    """Experts get their tokens times the router's score. With one expert per token, that is one value for all of them."""
    from transformers.integrations.moe import _default_apply_gate

    x = x.reshape(-1, self.hidden_dim)
    scores, logits = self.router(x)
    experts = self.experts
    if self.top_k == 1:
        # What transformers' interface gives the experts of other models.
        kind = type(experts)
        kind.has_gate = kind.is_concatenated = kind.is_transposed = True
        kind.has_bias, kind._apply_gate = False, _default_apply_gate
        best, index = torch.topk(logits, 1, dim=1)
        routed = _experts_hook(experts, x * torch.sigmoid(best), index, torch.ones_like(best))
    else:
        each = x.repeat(self.num_experts, 1) * scores.transpose(0, 1).reshape(-1, 1)
        routed = experts(each).reshape(self.num_experts, -1, self.hidden_dim).sum(dim=0)
    return self.shared_expert(x) + routed, logits


# Where the kernel is a method: by the name of its class.
_METHODS = {"RecurrentGemmaRglru": ("_rnn_scan", _rnn_scan), "xLSTMBackend": ("forward", _mlstm),
            "Llama4TextMoe": ("forward", _llama4_mixture)}


# Methods that add features of images to the hidden state of their tokens, behind some layers, and the argument of their
# module that has the features of each of these layers.
ADDITION, ADDED = "_deepstack_process", "deepstack_visual_embeds"


def _add_images(self, hidden_states, visual_pos_masks, visual_embeds):
    _refuse(not isinstance(visual_embeds, int), "an addition of given features")
    return OPS.add_images(hidden_states, visual_embeds)


@contextlib.contextmanager
def kernels():
    """While exporting, the kernels of the modelling modules are nodes."""
    saved = []

    def replace(owner, name, hook):
        if name in vars(owner):
            saved.append((owner, name, vars(owner)[name]))
            setattr(owner, name, hook)

    for name, module in list(sys.modules.items()):
        if ".modeling_" not in name or not name.startswith(("transformers.models.", "transformers_modules.")):
            continue
        for function, hook in _KERNELS.items():
            replace(module, function, hook)
        for owner, (method, hook) in _METHODS.items():
            if owner in vars(module):
                replace(vars(module)[owner], method, hook)
        for owner in list(vars(module).values()):
            if isinstance(owner, type) and owner.__module__ == name:
                replace(owner, ADDITION, _add_images)
    try:
        yield
    finally:
        for owner, name, old in saved:
            setattr(owner, name, old)
