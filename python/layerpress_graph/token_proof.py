"""A static proof that operations treat tokens one by one. An operation without a proof counts as one that mixes tokens."""

from __future__ import annotations

import re

_POINTWISE = frozenset("""abs add addcmul alias asin atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil celu clamp
clamp_max clamp_min clone contiguous copy cos detach div dropout elu empty_like eq erf exp exp2 expm1 fill float_power floor
floor_divide fmod full_like ge gelu gt hardsigmoid hardswish hardtanh isinf isnan le leaky_relu lerp lift_fresh_copy log log10
log1p log2 log_sigmoid logaddexp logical_and logical_not logical_or logical_xor lt masked_fill maximum minimum mish mul
nan_to_num ne neg ones_like polar pow reciprocal relu relu6 remainder round rsqrt rsub scalar_tensor selu sigmoid sign silu sin
softplus softsign sqrt square sub tan tanh threshold to trunc type_as where xlogy zeros_like _to_copy __and__ __or__ __xor__
__rshift__ __lshift__ true_divide""".split())
# Operations along dimensions, and which argument has these.
_REDUCTIONS = {"sum": 1, "mean": 1, "softmax": 1, "_softmax": 1, "log_softmax": 1, "_log_softmax": 1, "cumsum": 1, "cumprod": 1,
               "topk": 2, "sort": 1, "max": 1, "min": 1, "amax": 1, "amin": 1, "argmax": 1, "argmin": 1, "argsort": 1, "var": 1,
               "std": 1, "norm": 2, "linalg_vector_norm": 2, "prod": 1, "logsumexp": 1, "any": 1, "all": 1, "glu": 1, "flip": 1}
_LAST_BY_DEFAULT = frozenset("topk sort glu argsort".split())
# Operations that move elements but never mix them, if tokens keep a dimension of their own.
_SHAPES = frozenset("""view reshape _unsafe_view flatten unflatten squeeze unsqueeze expand view_as expand_as reshape_as permute
transpose t movedim numpy_T mT unbind view_as_real view_as_complex""".split())
_FILLED = frozenset("zeros ones full empty new_zeros new_ones new_empty new_full".split())
_PLACED = frozenset("gather scatter scatter_add index_select index_add scatter_reduce".split())


def mark_mixing(graph: dict) -> None:
    """Adds "mixes": a reason, to the nodes whose result for a token may depend on other tokens."""
    proof = _Proof(graph)
    for node in graph["nodes"]:
        reason = proof.fault(node)
        if reason:
            node["mixes"] = reason


class _Proof:
    def __init__(self, graph: dict):
        self.shapes = {entry["id"]: entry["shape"] for part in ("inputs", "parameters", "constants")
                       for entry in graph[part]}

    def tokens(self, value: int) -> list[int]:
        """The dimensions whose size depends on the number of tokens."""
        return [place for place, size in enumerate(self.shapes.get(value, ()))
                if isinstance(size, str) and re.search(r"\bT\b", size)]

    def fault(self, node: dict) -> str | None:
        name, arguments = node["op"].split(".")[1], node["args"]
        reads = list(_reads(arguments))
        if "shape" in node:
            self.shapes[node["out"]] = node["shape"]
        mine, theirs = self.tokens(node["out"]), [value for value in reads if self.tokens(value)]
        if node["op"].startswith("layerpress."):
            # Attention as the program's own node keeps samples apart; whatever is not taken for one runs by sample.
            return None if name in ("experts", "merge_images", "add_images") else name
        if node["op"].startswith("sym."):
            return None
        if not theirs and not mine:
            return None if not _counts(arguments) else "the number of tokens is a value"
        if len(mine) > 1 or any(len(self.tokens(value)) > 1 for value in theirs):
            return "tokens by tokens"
        if any(size != "T" for value in [node["out"], *theirs] for size in self.shapes.get(value, ()) if isinstance(size, str)):
            return "several rows for a token"
        if not theirs:
            filled = name in _FILLED or name in ("expand", "repeat")
            return None if filled else f"{name} makes something for each place"
        return self.rule(name, node, arguments, theirs, mine)

    def rule(self, name: str, node: dict, arguments: list, theirs: list[int], mine: list[int]) -> str | None:
        first = theirs[0]
        rank = len(self.shapes[first])
        if name in _POINTWISE:
            from_end = {place - len(self.shapes[node["out"]]) for place in mine}
            aligned = all({place - len(self.shapes[value]) for place in self.tokens(value)} == from_end for value in theirs)
            return None if aligned else "tokens are not aligned"
        if name in _SHAPES or name in _FILLED:
            return None if mine or name in _FILLED or name == "unbind" and not _has(arguments, 1, self.tokens(first), rank, 0) \
                else f"{name} loses the tokens"
        if name in ("linear", "mm", "matmul", "bmm", "addmm"):
            return self.product(name, arguments, theirs)
        if name in ("layer_norm", "native_layer_norm", "rms_norm", "_fused_rms_norm"):
            return f"{name} over tokens" if self.tokens(first)[0] >= rank - len(arguments[1]) else None
        if name in _REDUCTIONS:
            return self.reduction(name, arguments, first, rank)
        if name in ("slice", "narrow", "select", "slice_scatter", "select_scatter", "repeat_interleave"):
            place = {"slice_scatter": 2, "select_scatter": 2, "repeat_interleave": 2}.get(name, 1)
            whole = name == "slice" and node.get("shape") == self.shapes[first]
            return f"{name} along tokens" if not whole and _has(arguments, place, self.tokens(first), rank, 0) else None
        if name in ("cat", "stack"):
            return f"{name} along tokens" if _has(arguments, 1, mine, len(self.shapes[node["out"]]), 0) else None
        if name in ("split", "split_with_sizes", "chunk", "tensor_split"):
            return f"{name} along tokens" if _has(arguments, 2, self.tokens(first), rank, 0) else None
        if name in _PLACED:
            return f"{name} along tokens" if _has(arguments, 1, self.tokens(first), rank, 0) else None
        if name == "embedding":
            return "embedding of tokens" if self.tokens(next(_reads(arguments[:1]), -1)) else None
        if name in ("one_hot", "getitem"):
            return None
        if name in ("pad", "constant_pad_nd"):
            pads = arguments[1]
            touched = {rank - 1 - place // 2 for place, size in enumerate(pads) if size != 0}
            return f"{name} along tokens" if touched & set(self.tokens(first)) else None
        return f"{name} is not known to keep tokens apart"

    def product(self, name: str, arguments: list, theirs: list[int]) -> str | None:
        if name == "addmm":
            left, right = arguments[1]["v"], arguments[2]["v"]
            apart = not self.tokens(right) and 1 not in self.tokens(left)
        elif name == "linear":
            left = arguments[0]["v"]
            apart = theirs == [left] and len(self.shapes[left]) - 1 not in self.tokens(left)
        else:
            left, right = arguments[0]["v"], arguments[1]["v"]
            contracted = max(len(self.shapes[right]) - 2, 0)
            apart = len(self.shapes[left]) - 1 not in self.tokens(left) and contracted not in self.tokens(right)
        return None if apart else "tokens are summed"

    def reduction(self, name: str, arguments: list, first: int, rank: int) -> str | None:
        place = _REDUCTIONS[name]
        given = arguments[place] if len(arguments) > place and not isinstance(arguments[place], dict) else None
        if given is None or given == []:
            given = -1 if name in _LAST_BY_DEFAULT else list(range(rank))
        along = {each % rank for each in (given if isinstance(given, list) else [given])}
        return f"{name} over tokens" if along & set(self.tokens(first)) else None


def _reads(arguments):
    for argument in arguments:
        if isinstance(argument, list):
            yield from _reads(argument)
        elif isinstance(argument, dict) and "v" in argument:
            yield argument["v"]


def _counts(arguments) -> bool:
    return any(_counts(each) if isinstance(each, list) else isinstance(each, dict) and "tokens" in each for each in arguments)


def _has(arguments: list, place: int, tokens: list[int], rank: int, default: int) -> bool:
    """Whether the dimension in argument `place` is one of `tokens`; unknown ones count."""
    given = arguments[place] if len(arguments) > place else default
    given = default if isinstance(given, dict) and "default" in given else given
    return not isinstance(given, int) or rank > 0 and given % rank in tokens
