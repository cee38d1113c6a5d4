"""The lengths of samples that an exported graph holds for."""

import torch
from layerpress_graph.serialization import EXAMPLE_TOKENS, Writer


class Blocks(torch.nn.Module):
    """Adds up blocks of tokens, one after the other."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, input_ids):
        count = (input_ids.shape[1] + self.size - 1) // self.size
        return (sum(input_ids[:, i * self.size:(i + 1) * self.size].sum() for i in range(count)) + input_ids,)


def held(size):
    sample = torch.zeros((1, EXAMPLE_TOKENS), dtype=torch.long)
    program = torch.export.export(Blocks(size), (), {"input_ids": sample}, dynamic_shapes={"input_ids": {1: torch.export.Dim.DYNAMIC}},
                                  strict=False, prefer_deferred_runtime_asserts_over_guards=True)
    return Writer(program, {}).range()


def test_a_loop_over_blocks_fixes_their_number():
    assert held(64) == (2, 64)
    assert held(8) == (24, 24)  # the last block is a whole one
    assert held(1 << 24) == (2, 1 << 24)
