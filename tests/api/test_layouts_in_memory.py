"""Tensors that transformers lays out otherwise than checkpoints are read where they lie, and get the values of the result there."""

import pytest
import torch


def views_of(tensor, parts):
    from layerpress.loaded_model import _views_of

    return dict(_views_of("whole", tensor, parts))


def numbered(*shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


CASES = {
    "three convolutions": (numbered(9, 1, 4), lambda whole: dict(zip("qkv", whole.chunk(3)))),
    "query, key and value": (numbered(8, 3), lambda whole: dict(zip("qkv", whole.split([4, 2, 2])))),
    "experts": (numbered(4, 6, 5), lambda whole: {f"{e}.{name}": half for e in range(4) for name, half in zip(("gate", "up"), whole[e].chunk(2))}),
    "matrices that are transposed": (numbered(4, 6, 5), lambda whole: {"stored": whole.transpose(1, 2)}),
    "a bias": (numbered(6), lambda whole: dict(zip("kv", whole.chunk(2)))),
    "a number": (torch.tensor(3.0), lambda whole: {"other name": whole}),
    "equal halves": (torch.ones(6, 2), lambda whole: dict(zip("kv", whole.chunk(2)))),
}


@pytest.mark.parametrize("case", CASES)
def test_parts_are_views(case):
    whole, divided = CASES[case]
    parts = {name: part.clone() for name, part in divided(whole).items()}
    found = views_of(whole, parts)
    assert {name: view.tolist() for name, view in found.items()} == {name: part.tolist() for name, part in parts.items()}
    for number, view in enumerate(found.values()):
        view.fill_(-1 - number)
    values = whole.unique()
    assert len(values) == len(parts) and (values < 0).all(), "the views overlap or leave something out"


def test_what_is_no_part_is_refused():
    import layerpress

    with pytest.raises(layerpress.UsageError, match=r"stored in checkpoints is not a part of whole"):
        views_of(numbered(4, 6), {"stored": numbered(2, 6) + 0.5})


def test_a_parameter_that_is_not_contiguous(model, samples, by_program, gptq, loaded, tmp_path):
    import layerpress

    name = "model.layers.1.mlp.down_proj"
    linear = loaded.get_submodule(name)
    linear.weight.data = linear.weight.data.T.contiguous().T
    before = linear.weight.detach().clone()
    layerpress.oneshot(loaded, dataset=[{"input_ids": sample} for sample in samples], recipe=gptq, output_dir=tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (by_program / "model.safetensors").read_bytes()
    assert not linear.weight.is_contiguous() and not linear.weight.equal(before)
