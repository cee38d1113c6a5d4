"""Graph files that no export wrote: one line that says what and where, in little time and memory, and nothing left behind."""

import copy
import json
import os
import subprocess
import sys

import numpy
import pytest
from safetensors.numpy import save_file
from support import program

TENSORS = {"model.embed.weight": (12, 8), "model.norm.weight": (8,), "model.out.weight": (12, 8)}
MOST_KIB = 500_000  # the program takes a third of it


def kind(*shape, dtype="float32"):
    return {"dtype": dtype, "shape": list(shape)}


def node(out, op, arguments, module, *shape):
    return {"op": op, "args": arguments, "module": module, "out": out, **kind(*shape)}


def value(number):
    return {"v": number}


GRAPH = {
    "format": "layerpress.graph.v1", "dtype": "float32", "class": "SmallForCausalLM", "way": "hooks", "least_tokens": 2,
    "most_tokens": None, "vocab_size": 12, "max_position_embeddings": 64, "tied_head": False, "layer_classes": ["SmallLayer"],
    "linears": ["model.out"], "gates": {}, "constants": [], "values": 8, "output": 7,
    "inputs": [{"name": "input_ids", "id": 0, **kind(1, "T", dtype="int64")}],
    "parameters": [{"name": name, "id": place, "sources": [{"name": name, "shape": list(shape)}], "steps": [],
                    "result": {"source": 0}, **kind(*shape)} for place, (name, shape) in enumerate(TENSORS.items(), 1)],
    "modules": [["model.embed", "Embedding"], ["model.layer", "SmallLayer"], ["model.out", "Linear"]],
    "nodes": [node(4, "aten.embedding.default", [value(1), value(0)], 0, 1, "T", 8),
              node(5, "aten.mul.Tensor", [value(4), value(2)], 1, 1, "T", 8),
              node(6, "aten.tanh.default", [value(5)], 1, 1, "T", 8),
              node(7, "aten.linear.default", [value(6), value(3)], 2, 1, "T", 12)]}


@pytest.fixture
def graph_folder(tmp_path):
    folder = tmp_path / "graph"
    folder.mkdir()
    return folder


@pytest.fixture
def small(tmp_path, graph_folder, monkeypatch):
    """A checkpoint, and a helper that names a folder instead of exporting the model."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({name: numpy.full(shape, 0.1, numpy.float32) for name, shape in TENSORS.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"architectures": ["SmallForCausalLM"], "model_type": "small"}))
    helper = tmp_path / "helper"
    helper.mkdir()
    (helper / "prepare.py").touch()
    (helper / "export_graph.py").write_text(f"print({json.dumps(json.dumps({'graph': str(graph_folder)}))})\n")
    monkeypatch.setenv("LAYERPRESS_HELPER", str(helper / "prepare.py"))
    return folder


def changed(place, new):
    """A graph with another value at `place`, a path of keys."""
    graph = copy.deepcopy(GRAPH)
    inner = graph
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = new
    return graph


def refused(model, folder, fragments, begun=False):
    """`begun`: found by the run itself, which leaves its unfinished folder."""
    rows = program.write_samples(folder / "rows.jsonl", [range(1, 9)] * 2)
    outcome = program.oneshot(model, folder / "out", "--model-graph", "export", "--scheme", "W8A8", "--dataset", rows, code=1)
    for fragment in fragments:
        assert fragment in outcome.error, outcome.errors
    assert not (folder / "out").exists() and begun == bool(list(folder.glob(".out*")))


def test_the_unchanged_graph_is_taken(small, graph_folder):
    (graph_folder / "graph.json").write_text(json.dumps(GRAPH))
    found = program.run("inspect", small, "--model-graph", "export", "--json").json()["graph"]
    assert found["nodes"] == {"embedding": 1, "aten": 1, "linear": 1} and found["left_out"] == []


@pytest.mark.parametrize("place, new, fragments", [
    (("nodes", 1, "args"), [value(6), value(2)], ["node 5 (aten.mul.Tensor) reads value 6 before it is computed: a cycle"]),
    (("nodes", 1, "args"), [value(5), value(2)], ["node 5 (aten.mul.Tensor) reads value 5 before it is computed: a cycle"]),
    (("nodes", 2, "op"), "aten.tanhh.default", ["aten.tanhh.default", "not known"]),
    (("nodes", 2, "op"), "aten.from_file.default", ["aten.from_file.default", "may not be called"]),
    (("nodes", 2, "op"), "os.system", ["os.system"]),
    (("nodes", 1, "dtype"), "float31", ["dtype 'float31'"]),
    (("nodes", 2, "dtype"), "float64", ["1 linear has no node in the imported graph; the first is model.out"]),
    (("nodes", 2, "shape"), [1, "T", 9], ["1 linear has no node in the imported graph; the first is model.out"]),
    (("parameters",), GRAPH["parameters"][:2], ["node 7", "reads value 3 before it is computed"]),
    (("parameters", 1, "sources", 0, "name"), "model.absent.weight", ["model.absent.weight"]),
    (("parameters", 2, "sources", 0, "shape"), [12, 9], ["model.out.weight"]),
    (("parameters", 1, "name"), "model.norm\"} in 0\n%9", ["the name of a parameter"]),
    (("parameters", 1, "sources", 0, "name"), "../../etc/passwd", ["the name of a tensor"]),
    (("class",), "x" * 5000, ["the name of a class"]),
    (("values",), 1 << 62, ["are more than 1000000"]),
    (("nodes", 1, "shape"), [1, "T", 1 << 62], ["size"]),
])
def test_changed_graphs(small, graph_folder, tmp_path, place, new, fragments):
    (graph_folder / "graph.json").write_text(json.dumps(changed(place, new)))
    refused(small, tmp_path, fragments)


def test_a_weight_taken_for_integers(small, graph_folder, tmp_path):
    (graph_folder / "graph.json").write_text(json.dumps(changed(("parameters", 1, "dtype"), "int64")))
    refused(small, tmp_path, ["model.layer", "'model.norm.weight' is Float, the imported graph takes it for Long"], begun=True)


@pytest.mark.parametrize("least, most, fragments", [(2, 7, ["sample 1 (from 1) has 8 tokens", "holds for 2 to 7", "--max-seq-length 7"]),
                                                    (9, None, ["all samples have fewer than the 9 tokens"])])
def test_lengths_that_the_graph_does_not_hold_for(small, graph_folder, tmp_path, least, most, fragments):
    (graph_folder / "graph.json").write_text(json.dumps({**GRAPH, "least_tokens": least, "most_tokens": most}))
    refused(small, tmp_path, fragments)
    program.fails("oneshot", small, "--output", tmp_path / "out", "--model-graph", "export", "--scheme", "W8A8", "--dataset",
                  tmp_path / "rows.jsonl", "--dry-run", fragments=fragments)


# Linux counts the starting process's memory towards that of what it starts, and this one may hold torch: a small one starts it.
MEASURED = """
import json, resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([done.returncode, done.stderr, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]))
"""


def run_limited(model):
    """The errors, the seconds of processor time and the greatest memory in KiB of a process of its own."""
    command = [sys.executable, "-S", "-c", MEASURED, str(program.PROGRAM), "inspect", str(model), "--model-graph", "export"]
    code, errors, seconds, most = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    assert code == 1, errors
    return errors, seconds, most


@pytest.mark.parametrize("size, fragment", [(0, "more than 10000000 values"), (10_000_000 * 100, "more than the 268435456 allowed")])
def test_ten_million_nodes(small, graph_folder, size, fragment):
    """Nodes without content, and the size of a file whose nodes have some."""
    head, _, tail = json.dumps({**GRAPH, "nodes": ["here"]}).partition('"here"')
    file = graph_folder / "graph.json"
    file.write_text(head + "{}," * 10_000_000 + "{}" + tail)
    os.truncate(file, size or file.stat().st_size)
    errors, seconds, most = run_limited(small)
    assert fragment in errors and "graph.json" in errors
    assert seconds < 20 and most < MOST_KIB


def test_samples_that_are_too_short_are_left_out(small, graph_folder, tmp_path):
    """A row of one token, such as an empty text behind a token for the beginning, does not end a run."""
    (graph_folder / "graph.json").write_text(json.dumps({**GRAPH, "least_tokens": 2}))
    options = ["--model-graph", "export", "--scheme", "W8A8", "--dataset"]
    rows = program.write_samples(tmp_path / "rows.jsonl", [range(1, 9), [1], range(2, 8)])
    outcome = program.run("oneshot", small, "--output", tmp_path / "out", *options, rows)
    assert "rows.jsonl: one sample is left out, because the model's imported graph holds for samples of 2 tokens and more" in outcome.errors
    rows = program.write_samples(tmp_path / "without.jsonl", [range(1, 9), range(2, 8)])
    program.oneshot(small, tmp_path / "other", *options, rows)
    assert (tmp_path / "out/model.safetensors").read_bytes() == (tmp_path / "other/model.safetensors").read_bytes()
