"""The functions that stand in for transformers' kernels and masks in an export. test_kernel_hooks.py runs this file in a process of its own."""

import torch
from layerpress_graph import hooks
from transformers import masking_utils


def test_delta_rule_with_fewer_keys_than_values(monkeypatch):
    """Each head of queries and keys serves consecutive heads of values, as in transformers' own function."""
    called = []

    class Operators:
        @staticmethod
        def gated_delta_rule(*arguments):
            called.append(arguments)
            return arguments[2]

    monkeypatch.setattr(hooks, "OPS", Operators)
    query, key = (torch.arange(6.0).reshape(1, 1, 2, 3) + more for more in (0, 10))
    for heads in (2, 4):
        value, per_head = torch.zeros(1, 1, heads, 5), torch.zeros(1, 1, heads)
        hooks._gated_delta_rule(query, key, value, per_head, per_head, use_qk_l2norm_in_kernel=True)
        given_query, given_key, *rest = called.pop()
        head_of = [place * 2 // heads for place in range(heads)]
        assert torch.equal(given_query, query[:, :, head_of]) and torch.equal(given_key, key[:, :, head_of])
        assert rest[0] is value and rest[-1] is True


def remap_positions_for_packed_sequence(mask_function, position_ids):
    """As newer releases of transformers have it."""

    def inner_mask(batch_idx, head_idx, q_idx, kv_idx):
        return mask_function(batch_idx, head_idx, position_ids[batch_idx, q_idx], position_ids[batch_idx, kv_idx])

    return inner_mask


def test_masks_with_positions_of_their_own():
    positions, groups = torch.zeros(1, 4, dtype=torch.long), torch.full((1, 4), -1)
    packed = masking_utils.packed_sequence_mask_function(positions)
    for mask, kind in ((masking_utils.sliding_window_causal_mask_function(3), ("sliding", 3)),
                       (masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.blockwise_overlay(groups)), ("mutual causal", 0)),
                       (masking_utils.bidirectional_mask_function, ("bidirectional", 0))):
        assert hooks._mask_kind(mask) == kind
        assert hooks._mask_kind(masking_utils.and_masks(remap_positions_for_packed_sequence(mask, positions), packed)) == kind
