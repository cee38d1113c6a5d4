"""Quality on a real model: divergence from the base model on text that calibration has not seen."""

import json
import subprocess
import sys

import pytest
from support.program import PROGRAM, REPOSITORY
from support.program import TEST_MODEL as MODEL

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason=f"no model at {MODEL}; examples/demo/fetch_model.py fetches it")

RUNS = {
    "gptq hessian": ["--algorithm", "gptq", "--observer", "hessian"],
    "gptq best": ["--algorithm", "gptq", "--quality", "best"],
    "gptq minmax": ["--algorithm", "gptq", "--observer", "minmax"],
    "gptq hessian basic": ["--algorithm", "gptq", "--observer", "hessian", "--pipeline", "basic"],
    "rtn minmax": ["--algorithm", "rtn", "--observer", "minmax"],
    "rtn mse": ["--algorithm", "rtn", "--observer", "mse"],
}


def run(*arguments):
    done = subprocess.run([PROGRAM, *map(str, arguments), "--no-progress", "--log-level", "warning"],
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Divergences:
    """KL(base || compressed) by the name of a run, each made once and calibrated on 16 samples of up to 256 tokens."""

    def __init__(self, folder):
        self.folder, self.found = folder, {}
        subprocess.run([sys.executable, REPOSITORY / "examples" / "demo" / "python_docs_text.py", folder], check=True)

    def __getitem__(self, name):
        if name not in self.found:
            self.found[name] = self.measure(name)
            print("KL to the base model:", name, round(self.found[name], 4))
        return self.found[name]

    def measure(self, name):
        output = self.folder / name.replace(" ", "-")
        data = ["--dataset", self.folder / "calibration.jsonl", "--num-calibration-samples", 16, "--max-seq-length", 256]
        run("oneshot", MODEL, "--output", output, "--group-size", 64, *RUNS[name], *(data if "gptq" in name else []))
        measured = run("eval", output, "--reference", MODEL, "--dataset", self.folder / "evaluation.jsonl", "--num-samples", 4,
                       "--max-seq-length", 128)
        return json.loads(measured)["kl_divergence"]


@pytest.fixture(scope="module")
def divergence(tmp_path_factory):
    return Divergences(tmp_path_factory.mktemp("quality"))


@pytest.mark.nightly
def test_hessian_scales_beat_the_range(divergence):
    assert divergence["gptq hessian"] <= 0.7 * divergence["gptq minmax"]


@pytest.mark.nightly
def test_aiming_at_the_original_outputs_beats_both(divergence):
    assert divergence["gptq best"] <= 0.75 * divergence["gptq hessian"]


def test_gptq_beats_round_to_nearest(divergence):
    assert divergence["gptq hessian"] <= 0.35 * divergence["rtn minmax"]
    assert divergence["gptq hessian"] < 0.5 * divergence["rtn mse"]


def test_mse_scales_help_round_to_nearest(divergence):
    assert divergence["rtn mse"] < divergence["rtn minmax"]


@pytest.mark.nightly
def test_basic_pipeline_is_near_the_sequential_one(divergence):
    # It does not see the error of earlier layers, so it may be somewhat worse; far worse would be a mistake.
    assert divergence["gptq hessian basic"] < 1.5 * divergence["gptq hessian"]
    assert divergence["gptq hessian basic"] < 0.7 * divergence["rtn mse"]
