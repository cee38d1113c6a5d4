"""Operators that stand for whole computations in an exported graph. The program implements them; here they have shapes only."""

from __future__ import annotations

import torch

_LIBRARY = torch.library.Library("layerpress", "DEF")
_SCHEMAS = (
    "mask(Tensor x, str kind, int window) -> Tensor",
    "merge_images(Tensor x) -> Tensor",
    "add_images(Tensor x, int layer) -> Tensor",
    "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? sinks, float scale, str kind, "
    "int window, float soft_cap) -> Tensor",
    "experts(Tensor x, Tensor index, Tensor weights, Tensor gate_up, Tensor? gate_up_bias, Tensor down, "
    "Tensor? down_bias, bool transposed, bool gated, str function) -> Tensor",
    "causal_conv1d(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor",
    "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, bool l2norm) -> Tensor",
    "kimi_delta_attention(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, bool l2norm) -> Tensor",
    "mamba2_scan(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? dt_bias, bool softplus, "
    "float low, float high) -> Tensor",
    "selective_scan(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, "
    "bool softplus) -> Tensor",
    "wkv(Tensor decay, Tensor first, Tensor key, Tensor value) -> Tensor",
    "linear_recurrence(Tensor x, Tensor decay) -> Tensor",
    "mlstm(Tensor q, Tensor k, Tensor v, Tensor input, Tensor forget, float epsilon) -> Tensor",
    "grouped_product(Tensor x, Tensor weights, Tensor rows) -> Tensor",
)
for _schema in _SCHEMAS:
    _LIBRARY.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))


def _shaped(name):
    return torch.library.register_fake(f"layerpress::{name}", lib=_LIBRARY)


@_shaped("mask")
def _(x, kind, window):
    return x.new_empty((1, 1, 1, 1), dtype=torch.bool)


@_shaped("merge_images")
def _(x):
    return torch.empty_like(x)


@_shaped("add_images")
def _(x, layer):
    return torch.empty_like(x)


@_shaped("attention")
def _(q, k, v, mask, bias, sinks, scale, kind, window, soft_cap):
    return q.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[3]))


@_shaped("experts")
def _(x, *rest):
    return torch.empty_like(x)


for _name in ("causal_conv1d", "mamba2_scan", "selective_scan"):
    _shaped(_name)(lambda x, *rest: torch.empty_like(x, memory_format=torch.contiguous_format))
for _name in ("gated_delta_rule", "kimi_delta_attention", "mlstm"):
    _shaped(_name)(lambda q, k, v, *rest: torch.empty_like(v, memory_format=torch.contiguous_format))
_shaped("linear_recurrence")(lambda x, decay: torch.empty_like(x, memory_format=torch.contiguous_format))
_shaped("wkv")(lambda decay, first, key, value: torch.empty_like(key, memory_format=torch.contiguous_format))
_shaped("grouped_product")(lambda x, weights, rows: x.new_empty((x.shape[0], weights.shape[2])))
