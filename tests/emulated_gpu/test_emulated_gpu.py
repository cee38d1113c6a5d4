"""Whole runs on a GPU that is emulated (README.md): the CPU's results, within the planned memory of the device."""

import json
import os

import pytest
import torch
from support import block_models, planned_runs, program, tiny_models
from support.selection import nightly_but
from support.watched_runs import contents, differing

GPU = program.PROGRAM.parent / "emulated_gpu" / "layerpress"
pytestmark = pytest.mark.skipif(not GPU.exists(), reason="built for a real GPU")

SETTINGS = {"hidden_size": 128, "intermediate_size": 256}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 32}
QUALITIES = ["fast", "balanced", "best"]
SOLVED = ["W4A16", "W4A16_ASYM", "W8A8", "FP8", "NVFP4", "MXFP4", "MXFP8"]
ROUNDED = ["W4A16", "W4AFP8", "W8A8", "FP8_DYNAMIC", "FP8_BLOCK", "NVFP4A16", "MXFP4", "MXFP8"]
PRUNED = ["2:4", "0:0"]
WAITING = ["cpu", "disk"]
BLOCKS = {
    "rounded": ["--scheme", "Q4_K_M", "--algorithm", "rtn"],
    "weighed": ["--scheme", "IQ4_XS", "--algorithm", "rtn", "--observer", "hessian"],
    "solved": ["--scheme", "Q4_K_M"],
    "solved with a factor": ["--scheme", "NVFP4"],
    "moved": ["--scheme", "Q2_K", "--quality", "best"],
}
MEMORY = {
    "on the device": [],
    "on the host": ["--sequential-offload-device", "cpu"],
    "on disk": ["--sequential-offload-device", "disk"],
    "original model's": ["--quality", "best", "--sequential-offload-device", "cpu"],
    "smallest budget": ["--device-memory-budget", "28MB"],
    "one pass": ["--pipeline", "basic"],
    "no data": ["--algorithm", "rtn", "--pipeline", "datafree"],
    "static scales": ["--scheme", "FP8"],
    "fp4": ["--scheme", "NVFP4", "--algorithm", "rtn"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("model") / "model", dtype=torch.bfloat16, **SETTINGS)


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    return tiny_models.save(tmp_path_factory.mktemp("experts") / "model", "Qwen3Moe", dtype=torch.bfloat16, **SETTINGS, **EXPERTS)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rows = tiny_models.random_samples([40, 17, 64, 33, 50, 8] * 3)
    return ["--dataset", program.write_samples(tmp_path_factory.mktemp("data") / "rows.jsonl", rows)]


class Run:
    """A run on the emulated GPU, or with `program=program.PROGRAM` on the CPU."""

    def __init__(self, model, out, *arguments, program_=GPU, capacity=None):
        summary = out.with_name(f"{out.name}-summary.json")
        environment = dict(os.environ)
        if capacity is not None:
            environment["LAYERPRESS_EMULATED_GPU_BYTES"] = str(capacity)
        device = "cuda" if program_ == GPU else "cpu"
        outcome = program.run("oneshot", model, "--output", out, *arguments, "--device", device, "--summary", summary,
                              program=program_, env=environment)
        self.out, self.errors = out, outcome.errors
        self.summary = json.loads(summary.read_text())
        assert self.summary["device"] == ("cuda:0" if program_ == GPU else "cpu")

    def error_of(self, kind):
        return {module["module"]: module[kind] for module in self.summary["modules"]}


def both(model, folder, *arguments):
    return Run(model, folder / "cpu", *arguments, program_=program.PROGRAM), Run(model, folder / "gpu", *arguments)


def expect_close(cpu, gpu, tolerance=0.04):
    """Codes that a device rounds the other way change what later layers are solved for, so errors are compared."""
    for kind in ("output_error", "weight_error"):
        own, other = gpu.error_of(kind), cpu.error_of(kind)
        assert own == pytest.approx(other, rel=tolerance), kind
        assert min(own.values()) > 0
    names = tiny_models.tensors(cpu.out).keys()
    assert tiny_models.tensors(gpu.out).keys() == names


@pytest.mark.parametrize("scheme", nightly_but(ROUNDED, "W4A16", "NVFP4A16"))
def test_rounding_gives_the_bytes_of_a_cpu(scheme, model, tmp_path):
    cpu, gpu = both(model, tmp_path, "--algorithm", "rtn", "--pipeline", "datafree", "--scheme", scheme)
    assert differing(gpu.out, contents(cpu.out), ignored=["README.md"]) == []  # which names the arithmetic
    assert gpu.error_of("weight_error") == pytest.approx(cpu.error_of("weight_error"), rel=1e-4)


@pytest.mark.parametrize("quality", nightly_but(QUALITIES, "best"))
def test_qualities(quality, model, data, tmp_path):
    expect_close(*both(model, tmp_path, *data, "--quality", quality))


@pytest.mark.parametrize("scheme", nightly_but(SOLVED, "NVFP4"))
def test_schemes(scheme, model, data, tmp_path):
    expect_close(*both(model, tmp_path, *data, "--scheme", scheme))


@pytest.mark.parametrize("structure", nightly_but(PRUNED, "2:4"))
def test_pruning(structure, model, data, tmp_path):
    recipe = tmp_path / "recipe.json"
    recipe.write_text(json.dumps({"quant_stage": {"quant_modifiers": {"SparseGPTModifier": {
        "sparsity": 0.5, "mask_structure": structure, "targets": ["Linear"], "ignore": ["lm_head"]}}}}))
    cpu, gpu = both(model, tmp_path, *data, "--recipe", recipe)
    expect_close(cpu, gpu)
    assert gpu.summary["peak_device_bytes"] <= gpu.summary["plan"]["device_peak_bytes"]


@pytest.mark.parametrize("way", nightly_but(BLOCKS, "rounded", "solved"))
def test_blocks_of_a_gguf(way, data, tmp_path):
    """Rounded and solved on the host, from what the device collects; a rounded file is the CPU's."""
    model = block_models.save(tmp_path / "model", dtype=torch.bfloat16)
    tokens = [] if way == "rounded" else data
    cpu = Run(model, tmp_path / "cpu.gguf", *tokens, *BLOCKS[way], program_=program.PROGRAM)
    gpu = Run(model, tmp_path / "gpu.gguf", *tokens, *BLOCKS[way])
    assert gpu.error_of("weight_error") == pytest.approx(cpu.error_of("weight_error"), rel=0.04)
    assert way != "rounded" or gpu.out.read_bytes() == cpu.out.read_bytes()


@pytest.mark.parametrize("selection", [[], ["--no-moe-calibrate-all-experts"]], ids=["all tokens", "routed tokens"])
def test_experts(selection, experts, data, tmp_path):
    expect_close(*both(experts, tmp_path, *data, *selection), tolerance=0.1)


@pytest.mark.parametrize("place", WAITING)
def test_activations_that_wait_elsewhere_come_back_as_they_were(place, model, data, tmp_path):
    """Copies happen as late as their events allow."""
    batches = ["--batch-tokens", "64"]
    inside = Run(model, tmp_path / "inside", *data, *batches)
    outside = Run(model, tmp_path / "outside", *data, *batches, "--sequential-offload-device", place)
    assert differing(outside.out, contents(inside.out)) == []


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    return planned_runs.make_model(tmp_path_factory.mktemp("narrow"), "narrow")


@pytest.mark.parametrize("way", nightly_but(MEMORY, "on the device", "on the host", "no data"))
def test_the_device_plan_against_reality(way, narrow, tmp_path):
    arguments = MEMORY[way]
    tokens = [] if "datafree" in arguments else planned_runs.data(narrow.parent, 16, 256)
    run = Run(narrow, tmp_path / "out", *tokens, *arguments, "--batch-tokens", "512")
    planned, peak = run.summary["plan"]["device_peak_bytes"], run.summary["peak_device_bytes"]
    most = 1.6 if way == "static scales" else 1.4  # where the search for scales of whole tensors counts all of them at once
    assert peak <= 1.05 * planned and planned <= most * peak, f"planned {planned / 1e6:.1f} MB, measured {peak / 1e6:.1f} MB"


def test_a_batch_that_does_not_fit_is_run_in_pieces(narrow, tmp_path):
    data = [*planned_runs.data(narrow.parent, 32, 256), "--batch-tokens", "8192", "--algorithm", "rtn", "--scheme", "FP8", "--observer", "minmax"]
    whole = Run(narrow, tmp_path / "whole", *data)
    capacity = whole.summary["peak_device_bytes"] * 9 // 10
    pieces = Run(narrow, tmp_path / "pieces", *data, "--device-memory-budget", "1GB", capacity=capacity)
    assert "out of memory" in pieces.errors
    assert differing(pieces.out, contents(whole.out)) == []


def test_a_device_that_is_not_there(model, data, tmp_path):
    program.fails("oneshot", model, "--output", tmp_path / "out", *data, "--device", "cuda:1", program=GPU, code=2,
                  fragments=["--device", "cuda:1", "has 1"])


def test_a_device_that_is_too_small(narrow, tmp_path):
    data = planned_runs.data(narrow.parent, 16, 256)
    outcome = program.fails("oneshot", narrow, "--output", tmp_path / "out", *data, "--device", "cuda", "--device-memory-budget", "9MB",
                            program=GPU, fragments=["model.layers.0 needs", "on the device", "--device-memory-budget"])
    assert "disk" not in outcome.error
