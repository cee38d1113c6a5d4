"""An imported hybrid model (Mamba, attention, experts without a gate) in every way in which a model is compressed."""

import os
import signal
import subprocess
import time

import pytest
import torch
import transformers
from safetensors.torch import load_file
from support import any_model, program, ranked_runs, tiny_models
from support.selection import nightly_but
from support.watched_runs import WatchedRun, killed, unfinished

LAYERS = ["mamba", "attention", "moe", "moe"]
EXPORT = ["--model-graph", "export", "--group-size", "16", "--threads", "1"]


class Hybrid:
    def __init__(self, folder, dtype):
        self.folder = any_model.save(folder / "model", "nemotron_h", dtype, layers_block_type=LAYERS)
        self.samples = tiny_models.random_samples((60, 37, 40, 21), 256)
        self.data = ["--dataset", program.write_token_file(folder / "tokens.safetensors", self.samples)]
        self.out = program.oneshot(self.folder, folder / "out", *EXPORT, *self.data)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("hybrid")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield Hybrid(folder, torch.float32)


def tensors(folder):
    return {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}


def same_tensors(folder, expected):
    """Names of tensors that differ."""
    found, wanted = tensors(folder), tensors(expected)
    return sorted(name for name in found.keys() | wanted.keys()
                  if name not in found or name not in wanted or not torch.equal(found[name], wanted[name]))


@torch.no_grad()
def divergence(folder, hybrid, dtype=torch.float32):
    """Mean KL divergence of the compressed model that transformers loads from the original, which has about 0.7 itself."""
    transformers.utils.logging.set_verbosity_error()
    model, info = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    sum_, count = 0, 0
    for sample, wanted in zip(hybrid.samples, any_model.logits(hybrid.folder, hybrid.samples, dtype)):
        own = torch.log_softmax(model(torch.tensor([sample]), use_cache=False).logits[0].float(), -1)
        logs = torch.log_softmax(torch.from_numpy(wanted), -1)
        sum_, count = sum_ + (logs.exp() * (logs - own)).sum().item(), count + len(sample)
    return sum_ / count


def test_every_linear_is_compressed(hybrid):
    names = tensors(hybrid.out).keys()
    packed = {name.removesuffix(".weight_packed") for name in names if name.endswith(".weight_packed")}
    assert {f"backbone.layers.3.mixer.experts.{e}.{part}_proj" for e in range(8) for part in ("up", "down")} <= packed
    assert "backbone.layers.2.mixer.gate.weight" in names and "lm_head.weight" in names
    assert divergence(hybrid.out, hybrid) < 0.15


@pytest.mark.nightly
@pytest.mark.parametrize("options", [["--pipeline", "basic"], ["--pipeline", "two_pass"], ["--pipeline", "datafree"], ["--batch-tokens", "1"],
                                     ["--no-moe-calibrate-all-experts"], ["--quality", "best"],
                                     ["--sequential-offload-device", "disk"]], ids=" ".join)
def test_pipelines(options, hybrid, tmp_path):
    data = [] if "datafree" in options else hybrid.data
    algorithm = ["--algorithm", "rtn"] if "datafree" in options else []
    out = program.oneshot(hybrid.folder, tmp_path / "out", *EXPORT, *data, *algorithm, *options)
    assert divergence(out, hybrid) < 0.3


@pytest.mark.nightly
def test_linear_targets_give_the_same(hybrid, tmp_path):
    out = program.oneshot(hybrid.folder, tmp_path / "out", *EXPORT, *hybrid.data, "--sequential-targets", "Linear")
    assert same_tensors(out, hybrid.out) == []


@pytest.mark.nightly
def test_two_ranks(hybrid, tmp_path):
    """Sums of the Gram matrices differ in their last bits; codes of the first group of the first layer do hardly."""
    out = ranked_runs.run(2, hybrid.folder, tmp_path / "out", *EXPORT, *hybrid.data)
    name = "backbone.layers.0.mixer.in_proj.weight_packed"
    assert (tensors(out)[name] == tensors(hybrid.out)[name]).float().mean() > 0.98
    assert divergence(out, hybrid) < 0.15


@pytest.mark.nightly
def test_killed_and_resumed(hybrid, tmp_path):
    out = tmp_path / "out"
    arguments = [*EXPORT, *hybrid.data, "--sequential-targets", "Linear"]
    killed(hybrid.folder, out, *arguments, subgraphs=4)
    program.oneshot(hybrid.folder, out, *arguments, "--resume")
    assert same_tensors(out, hybrid.out) == []


@pytest.mark.nightly
def test_bf16(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hybrid = Hybrid(tmp_path, torch.bfloat16)
    assert divergence(hybrid.out, hybrid, torch.bfloat16) < 0.2


@pytest.fixture
def exporting(tmp_path, monkeypatch):
    """A file with the helper's process id, as soon as it exports a graph."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    marker = tmp_path / "exporting"
    helper = tmp_path / "helper"
    helper.mkdir()
    script = program.REPOSITORY / "python" / "export_graph.py"
    (helper / "prepare.py").write_text("")
    (helper / "export_graph.py").write_text(
        f"import os, pathlib, runpy, sys\nsys.path.insert(0, {str(script.parent)!r})\n"
        f"pathlib.Path({str(marker)!r}).write_text(str(os.getpid()))\nrunpy.run_path({str(script)!r}, run_name='__main__')\n")
    monkeypatch.setenv("LAYERPRESS_HELPER", str(helper / "prepare.py"))
    return marker


@pytest.mark.parametrize("what", nightly_but([signal.SIGINT, signal.SIGTERM], signal.SIGINT))
def test_stopped_while_the_graph_is_exported(what, hybrid, exporting, tmp_path):
    """The helper ends with the program, and nothing is left behind, not even half a graph in the cache."""
    run = WatchedRun(hybrid.folder, tmp_path / "out", *EXPORT, *hybrid.data)
    assert run.wait_until(lambda: exporting.exists() and exporting.read_text())
    outcome = run.send(what).end(timeout=20)
    assert outcome.code == 130, outcome.errors
    assert "stopped on request" in outcome.error
    pid = int(exporting.read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert not (tmp_path / "out").exists() and not unfinished(tmp_path / "out").exists()
    assert not list((tmp_path / "cache").rglob("graph.json"))


def test_verify_stopped(hybrid, exporting, tmp_path):
    """It writes nothing, so that its message speaks of the checks."""
    command = [program.PROGRAM, "verify", hybrid.out, "--model-graph", "export"]
    process = subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not (exporting.exists() and exporting.read_text()):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    errors = process.communicate(timeout=20)[1]
    assert process.returncode == 130
    assert errors.splitlines()[-1] == f"error: [verify] stopped on request; {hybrid.out} is not checked to the end, so there is no result"
