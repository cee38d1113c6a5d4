"""Models in memory whose classes are not transformers' own: code that came with the checkpoint, and subclasses in a script."""

import json

import pytest
import torch
import transformers
from layerpress.modifiers.quantization import QuantizationModifier
from support import tiny_models

import layerpress

RECIPE = QuantizationModifier(scheme="FP8_DYNAMIC", targets="Linear", ignore=["lm_head"])
CONFIG = "from transformers import LlamaConfig\n\n\nclass OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
MODEL = ("from transformers import LlamaForCausalLM\n\nfrom .configuration_own import OwnConfig\n"
         "from ._parts import Part\n\n\nclass OwnForCausalLM(Part, LlamaForCausalLM):\n    config_class = OwnConfig\n")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tiny_models.save(tmp_path_factory.mktemp("own") / "model", dtype=torch.bfloat16)
    (folder / "configuration_own.py").write_text(CONFIG)
    (folder / "modeling_own.py").write_text(MODEL)
    (folder / "_parts.py").write_text("class Part:\n    pass\n")
    names = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}
    tiny_models.rewrite_config(folder, lambda config: config.update(model_type="own", architectures=["OwnForCausalLM"], auto_map=names))
    return folder


def test_code_of_the_checkpoint(folder, tmp_path):
    """This process runs it already, so nothing asks for trust in it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True, dtype="auto")
    layerpress.oneshot(model=model, recipe=RECIPE, output_dir=tmp_path / "memory", progress=False)
    layerpress.oneshot(model=folder, recipe=RECIPE, output_dir=tmp_path / "folder", progress=False, trust_remote_code=True)
    found, wanted = (tiny_models.tensors(tmp_path / name) for name in ("memory", "folder"))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name].view(torch.uint8), wanted[name].view(torch.uint8)) for name in wanted)
    model.save_pretrained(tmp_path / "saved")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", trust_remote_code=True, dtype="auto")
    assert type(again).__name__ == "OwnForCausalLM"
    head = QuantizationModifier(scheme="FP8_DYNAMIC", targets=["lm_head"], ignore=[])
    layerpress.oneshot(model=model, recipe=head, output_dir=tmp_path / "second", progress=False)
    assert "lm_head.weight_scale" in tiny_models.tensors(tmp_path / "second")
    derived = type("Derived", (type(again),), {"__module__": "__main__"}).from_pretrained(folder, dtype="auto")
    layerpress.oneshot(model=derived, recipe=RECIPE, output_dir=tmp_path / "derived", progress=False)
    assert (tmp_path / "derived" / "_parts.py").exists()


class Extended(transformers.LlamaForCausalLM):
    """As scripts write them."""


def test_subclass_in_a_script(folder, tmp_path):
    """The config describes the class of transformers."""
    model = Extended(transformers.LlamaConfig(vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4))
    layerpress.oneshot(model=model, recipe=RECIPE, output_dir=tmp_path / "out", progress=False)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
