"""The lengths of samples that an exported graph holds for."""

import torch
from layerpress_graph.lengths import recorded
from layerpress_graph.serialization import EXAMPLE_TOKENS, Writer


class Blocks(torch.nn.Module):
    """Adds up blocks of tokens, one after the other."""

    def __init__(self, size):
        super().__init__()
        self.size = size

    def forward(self, input_ids):
        count = (input_ids.shape[1] + self.size - 1) // self.size
        return (sum(input_ids[:, i * self.size:(i + 1) * self.size].sum() for i in range(count)) + input_ids,)


class Windows(torch.nn.Module):
    """Makes a value of every whole window of tokens, and computes with them if there are any."""

    def __init__(self, without):
        super().__init__()
        self.without = without  # what it adds where there is no window

    def forward(self, input_ids):
        count = input_ids.shape[1] // 64
        windows = input_ids[:, :count * 64]
        if count > 0:
            return (torch.cat([input_ids, windows.view(1, count, 64, -1).sum(dim=2)[..., 0]], dim=1),)
        return (torch.cat([input_ids + self.without, windows], dim=1) if self.without else torch.cat([input_ids, windows], dim=1),)


def writer_of(module, tokens):
    sample = torch.zeros((1, tokens), dtype=torch.long)
    program = torch.export.export(module, (), {"input_ids": sample}, dynamic_shapes={"input_ids": {1: torch.export.Dim.DYNAMIC}},
                                  strict=False, prefer_deferred_runtime_asserts_over_guards=True)
    return Writer(program, {})


def held(size):
    writer = writer_of(Blocks(size), EXAMPLE_TOKENS)
    return writer.least, writer.most


def widest(module):
    lengths = []
    writer = recorded(lambda tokens: lengths.append(tokens) or writer_of(module, tokens))
    return writer.least, writer.most, lengths


def test_a_loop_over_blocks_fixes_their_number():
    assert held(64) == (2, 64)
    assert held(8) == (24, 24)  # the last block is a whole one
    assert held(1 << 24) == (2, 1 << 24)


def test_a_graph_of_a_long_sample_holds_where_shorter_ones_compute_the_same():
    assert widest(Windows(0)) == (2, None, [24, 152, 88])
    assert widest(Windows(1)) == (2, 63, [24, 152, 88])
    assert widest(Blocks(64)) == (2, 64, [24, 154])
