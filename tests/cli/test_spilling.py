"""Activations that leave memory, and smaller subgraphs: the same result from less memory."""

import shutil

import numpy
import pytest
from safetensors.torch import load_file, save_file
from support import deep_model, planned_runs, program, tiny_models
from support.planned_runs import MIB, Measured, plan
from support.selection import nightly_but
from support.watched_runs import WatchedRun, contents, differing, killed, unfinished

PLACES = ["auto", "cpu", "disk", "none"]
BATCHES = ["--batch-tokens", "2048", "--threads", "2"]  # other batches round otherwise
FIRST_GROUP = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]


@pytest.fixture(scope="module")
def slim(tmp_path_factory):
    return planned_runs.make_model(tmp_path_factory.mktemp("slim"), "slim")


@pytest.fixture(scope="module")
def solving(slim):
    return [*planned_runs.data(slim.parent, 32, 256), *BATCHES]


@pytest.fixture(scope="module")
def in_memory(slim, solving, tmp_path_factory):
    """The output of a run without a budget, and what it took."""
    out = tmp_path_factory.mktemp("memory") / "out"
    measured = Measured(slim, out, *solving)
    assert measured.summary["spilled_bytes"] == 0
    return contents(out), measured


@pytest.fixture
def scratch(tmp_path):
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("place", nightly_but(PLACES, "disk"))
def test_place_of_activations(place, slim, solving, in_memory, results, scratch):
    measured = Measured(slim, results / "out", *solving, "--sequential-offload-device", place, "--offload-dir", scratch)
    assert differing(results / "out", in_memory[0]) == []
    assert (measured.summary["spilled_bytes"] > 0) == (place == "disk")
    assert list(results.iterdir()) == [results / "out"] and list(scratch.iterdir()) == []


def test_disk_takes_what_memory_held(slim, solving, in_memory, results):
    """A hidden state of all tokens leaves memory at the least."""
    planned = plan(slim, results / "out", *solving, "--sequential-offload-device", "disk")
    assert max(subgraph["activation_disk_bytes"] for subgraph in planned["subgraphs"]) >= 32 * 256 * 1024 * 2
    measured = Measured(slim, results / "out", *solving, "--sequential-offload-device", "disk")
    assert measured.peak_bytes < in_memory[1].peak_bytes - 8 * MIB


def test_budget_that_forces_spilling(slim, solving, in_memory, results, scratch):
    free = plan(slim, results / "out", *solving)
    budget = free["smallest_budget_bytes"] // MIB + 1
    arguments = [*solving, "--memory-budget", f"{budget}MiB", "--offload-dir", scratch]
    measured = Measured(slim, results / "out", *arguments)
    assert measured.summary["spilled_bytes"] > 0 and measured.peak_bytes <= budget * MIB
    assert differing(results / "out", in_memory[0]) == []
    assert list(results.iterdir()) == [results / "out"] and list(scratch.iterdir()) == []


@pytest.mark.parametrize("options", nightly_but([["--algorithm", "rtn"], ["--pipeline", "basic"]], ["--algorithm", "rtn"]))
def test_disk_where_nothing_waits(options, slim, solving, results):
    """These pipelines keep no values between stages; that they would go to disk changes nothing."""
    arguments = [*(solving if "basic" in options else []), *options]
    plain = contents(program.oneshot(slim, results / "plain", *arguments))
    out = program.oneshot(slim, results / "out", *arguments, "--sequential-offload-device", "disk")
    assert differing(out, plain) == []


def test_scratch_file_goes_with_a_run_that_is_not_kept(slim, solving, results, scratch):
    """A damaged model: nothing can be continued, so nothing stays."""
    model = shutil.copytree(slim, results.parent / "broken")
    tensors = load_file(model / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][3, 5] = float("nan")
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    program.fails("oneshot", model, "--output", results / "out", *solving, "--sequential-offload-device", "disk",
                  "--offload-dir", scratch, fragments=["NaN"], code=1)
    assert list(scratch.iterdir()) == [] and list(results.iterdir()) == []


def test_budget_that_forces_recomputing(slim, solving, in_memory, results):
    """Half of what storing takes beyond the smallest budget, and no disk."""
    arguments = [*solving, "--sequential-offload-device", "cpu"]
    free = plan(slim, results / "out", *arguments)
    budget = (free["smallest_budget_bytes"] + free["peak_bytes"]) // 2 // MIB
    arguments += ["--memory-budget", f"{budget}MiB"]
    assert "recompute" in {each["mode"] for each in plan(slim, results / "out", *arguments)["subgraphs"]}
    measured = Measured(slim, results / "out", *arguments)
    assert measured.summary["spilled_bytes"] == 0 and measured.peak_bytes <= budget * MIB
    assert differing(results / "out", in_memory[0]) == []


def scratch_bytes(folder):
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.suffix != ".safetensors")


@pytest.mark.parametrize("place", nightly_but(["beside the output", "offload folder"], "offload folder"))
def test_scratch_file(place, slim, solving, in_memory, results, scratch):
    """Where it lies while the run goes on; a killed run leaves it, the resumed one removes it."""
    out = results / "out"
    arguments = [*solving, "--sequential-offload-device", "disk"]
    arguments += ["--offload-dir", scratch] if place == "offload folder" else []
    folder, other = (scratch, unfinished(out)) if place == "offload folder" else (unfinished(out), scratch)
    run = WatchedRun(slim, out, *arguments).wait_for_subgraphs(2)
    assert scratch_bytes(folder) >= 32 * 256 * 1024 * 2 > scratch_bytes(other)
    assert run.kill()
    program.oneshot(slim, out, *arguments, "--resume")
    assert differing(out, in_memory[0]) == []
    assert list(results.iterdir()) == [out] and list(scratch.iterdir()) == []


def test_refused_run_leaves_no_scratch(slim, solving, results, scratch):
    program.fails("oneshot", slim, "--output", results / "out", *solving, "--sequential-offload-device", "disk",
                  "--offload-dir", scratch, "--memory-budget", "20MiB", fragments=["[plan]"])
    assert list(scratch.iterdir()) == [] and list(results.iterdir()) == []


def test_two_runs_share_an_offload_folder(results, scratch, tmp_path):
    """Scratch files of different outputs do not get into each other's way."""
    model = deep_model.save(tmp_path)
    arguments = [*deep_model.gptq(model), "--sequential-offload-device", "disk", "--offload-dir", scratch]
    killed(model, results / "left", *arguments)
    runs = [WatchedRun(model, results / name, *arguments) for name in ("one", "other")]
    assert [run.end().code for run in runs] == [0, 0]
    program.oneshot(model, results / "left", *arguments, "--resume")
    expected = contents(results / "one")
    assert differing(results / "other", expected) == [] and differing(results / "left", expected) == []
    assert list(scratch.iterdir()) == []


def codes(folder, modules):
    """4-bit codes of modules, one array."""
    tensors = tiny_models.tensors(folder)
    words = [tensors[f"{module}.weight_packed"].numpy().view(numpy.uint8).ravel() for module in modules]
    return numpy.concatenate([part for word in words for part in (word & 15, word >> 4)])


@pytest.mark.nightly
@pytest.mark.parametrize("options", [[], ["--dtype", "float32"]], ids=["bf16", "fp32"])
def test_linear_targets(options, slim, solving, results):
    """Cut at every linear: the same codes where inputs are the same, with less memory planned and taken."""
    targets = {"layers": [], "linears": ["--sequential-targets", "Linear"]}
    runs = {name: Measured(slim, results / name, *solving, *options, *target) for name, target in targets.items()}
    equal = codes(results / "layers", FIRST_GROUP) == codes(results / "linears", FIRST_GROUP)
    assert equal.mean() >= 0.99
    plans = {name: run.plan for name, run in runs.items()}
    assert plans["linears"]["smallest_budget_bytes"] < plans["layers"]["smallest_budget_bytes"]
    # In fp32, the values between more stages outweigh what a finer cut saves, as long as the budget has room for them.
    if not options:
        assert plans["linears"]["peak_bytes"] < plans["layers"]["peak_bytes"]
        assert runs["linears"].peak_bytes < runs["layers"].peak_bytes
