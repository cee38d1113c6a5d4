"""The graph that is imported of a family that is also written by hand has the same nodes, as the text forms say."""

import json
import os
import re

import numpy
import pytest
import torch
from support import program, tiny_mllama, tiny_models
from support.selection import nightly_but

SAME = ("Llama", "Mistral", "Qwen2", "Qwen3", "SmolLM3")
# Kinds of nodes that other families have by hand, and whose operators stay as they were exported: `aten`.
OTHERS = {"Phi3": {"slice", "gated_activation"}, "Gemma2": {"scale", "soft_cap", "embedding"}, "Olmo2": {"rotary"},
          "Granite": {"add"}, "Gemma3": {"scale", "embedding"}, "Cohere2": {"scale", "layer_norm", "rotary"},
          "Mixtral": {"route"}, "Qwen3Moe": {"route"}, "Olmoe": {"route"},
          "Qwen2Moe": {"route", "gate"},
          **dict.fromkeys(("DeepseekV2", "DeepseekV3"), {"slice", "rotary", "join_heads", "route", "linear"})}
ROOT = '""'
NODE = re.compile(r"%(\d+) \[(.+?)\] = (\w+)\((.*?)\) (\{.*\}) in (\d+)$")


class Text:
    """The nodes of a graph's text: what each one computes, of what, in which module. `tables` are those met so far."""

    def __init__(self, text, tables):
        lines = text.splitlines()
        parts = lambda word: [line[len(word) + 1:] for line in lines if line.startswith(word + " ")]
        self.tables = [place_of(json.loads(line), tables) for line in parts("rope")]
        self.modules = [line.split(" ")[:2] for line in parts("module")]
        self.nodes, self.values = [], {"%0": "tokens", **{line.split()[0]: "images" for line in parts("input")}}
        for out, features, kind, inputs, settings, module in (NODE.match(line).groups() for line in lines if " = " in line):
            self.add("%" + out, features, kind, [each for each in inputs.split(", ") if each], json.loads(settings), int(module))

    def add(self, out, features, kind, inputs, settings, module):
        if isinstance(settings.get("table"), int):
            settings["table"] = self.tables[settings["table"]]
        settings = {key: float(f"{value:.12g}") if isinstance(value, float) else value for key, value in settings.items()}
        name, class_name = self.modules[module]
        node = f"{kind} [{features}] {json.dumps(settings, sort_keys=True)} in {name} {shown_class(kind, name, class_name)}"
        self.nodes.append((kind, node, f"{node} of {[self.values[each] for each in inputs]}"))
        self.values[out] = f"{kind} of {name} {hash(self.nodes[-1][2])}"


def shown_class(kind, name, class_name):
    """transformers has no class for one expert, and routers only must not be Linear; the root's is the class of the model or none."""
    if name == ROOT or re.search(r"experts\.\d+\"$", name):
        return ""
    return "Router" if kind == "linear" and class_name != "Linear" else class_name


def place_of(table, tables):
    """The place among `tables` of one with the same frequencies, but for the last bit of fp32: PyTorch computes in fp32."""
    alike = lambda other: all(numpy.shape(value) == numpy.shape(other[key]) and numpy.allclose(value, other[key], rtol=3e-7, atol=0)
                              for key, value in table.items() if key != "theta")  # of use only for changing frequencies
    if not any(map(alike, tables)):
        tables.append(table)
    return [alike(other) for other in tables].index(True)


def texts(family, folder):
    return texts_of(tiny_models.save(folder / "model", family, torch.bfloat16), folder)


def texts_of(model, folder):
    environment, tables = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache")}, []
    return [Text(program.run("inspect", model, "--model-graph", graph, "--graph", env=environment).output, tables)
            for graph in ("builtin", "export")]


@pytest.mark.parametrize("family", nightly_but(SAME, "Qwen3"))
def test_same_nodes(family, tmp_path):
    builtin, imported = texts(family, tmp_path)
    assert {"rms_norm", "linear", "rotary", "attention", "gated_activation"} <= {kind for kind, _, _ in builtin.nodes}
    assert sorted(text for _, _, text in imported.nodes) == sorted(text for _, _, text in builtin.nodes)


@pytest.mark.nightly
@pytest.mark.parametrize("family", OTHERS)
def test_other_nodes(family, tmp_path):
    """Nodes differ in these kinds only, and every linear and norm is the same, but for routers that transformers holds as a parameter."""
    builtin, imported = texts(family, tmp_path)
    mine, theirs = ({(kind, text) for kind, text, _ in each.nodes} for each in (imported, builtin))
    assert {kind for kind, _ in theirs - mine} <= OTHERS[family]
    assert {kind for kind, _ in mine - theirs} <= OTHERS[family] | {"aten"}
    assert all(text.endswith(" Router") for kind, text in theirs ^ mine if kind == "linear")


@pytest.mark.nightly
def test_mllama(tmp_path):
    """transformers leaves out the layers that attend to images where there are none; its other text layers are the same."""
    tiny_mllama.save(tmp_path / "model", torch.bfloat16)
    builtin, imported = texts_of(tmp_path / "model", tmp_path)
    mine, theirs = ({text for _, text, _ in each.nodes} for each in (imported, builtin))
    mine = {text for text in mine if not text.startswith("merge_images")}  # does nothing without images
    assert mine < theirs
    assert all("MllamaCrossAttention" in text or re.search(r' in "(vision_model|multi_modal_projector)|cross_attn|layers\.[13]\.', text)
               for text in theirs - mine)
