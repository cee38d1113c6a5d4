"""Messages in Python's words."""

import pytest


@pytest.mark.parametrize("said, wanted", [
    ("[cli] --output is required", "[cli] output= is required"),
    ("choose another --output or pass --overwrite", "choose another output= or pass overwrite=True"),
    ("add --download, or: hf download", "add download=True, or: hf download"),
    ("add --group-size 64", "add group_size=64"),
    ("[options] --pipeline: 'x' is not known", "[options] pipeline: 'x' is not known"),
    ("[options] --pipeline datafree: needs data", "[options] pipeline='datafree': needs data"),
    ("leave out --no-moe-calibrate-all-experts", "leave out moe_calibrate_all_experts=False"),
    ("pass --device 'cuda:1'", "pass device='cuda:1'"),
    ("use --schemes Q5_0,Q8_0, which fit", 'use schemes=["Q5_0", "Q8_0"], which fit'),
    ("write --push ORG/NAME", "write push='ORG/NAME'"),
    ("vllm serve . --tensor-parallel-size 2", "vllm serve . --tensor-parallel-size 2"),
])
def test_options_become_keywords(said, wanted):
    from layerpress.wording import in_python

    assert in_python(said) == wanted


def test_errors_and_messages_name_keywords(model, tmp_path, caplog):
    import layerpress

    with pytest.raises(layerpress.UsageError, match=r"output= is required"):
        layerpress.oneshot(model, dataset=[[1, 2]])
    with pytest.raises(layerpress.CheckpointError, match="download=True"):
        layerpress.inspect("no-org/no-model")
