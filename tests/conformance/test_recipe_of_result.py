"""A result's recipe.yaml makes of LLM Compressor what the result's config.json says (scripts/setup --peer)."""

import json
import subprocess
from pathlib import Path

import pytest
import small_model
from safetensors import safe_open
from support import program, tiny_models

PYTHON = program.REPOSITORY / ".venv-peer" / "bin" / "python"
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-peer; scripts/setup --peer makes it")]

CASES = {
    "GPTQ": ["--scheme", "W4A16", "--group-size", "32"],
    "GPTQ of a preset": ["--scheme", "W8A8"],
    "GPTQ with zero points": ["--scheme", "W4A16_ASYM", "--group-size", "32", "--observer", "mse"],
    "int8 inputs": ["--scheme", "W8A8", "--algorithm", "rtn"],
    "FP8": ["--scheme", "FP8_DYNAMIC", "--algorithm", "rtn"],
    "NVFP4": ["--scheme", "NVFP4", "--algorithm", "rtn"],
}


# An observer that LLM Compressor lacks is not in recipe.yaml, and LLM Compressor takes its own default.
OWN_OBSERVER = {"squared_error": "memoryless_minmax"}


def as_theirs(value):
    """What LLM Compressor writes in place of a setting."""
    if isinstance(value, dict):
        return {key: OWN_OBSERVER.get(of, of) if key == "observer" else as_theirs(of) for key, of in value.items()}
    return value


def tensors(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: (file.get_slice(name).get_dtype(), file.get_slice(name).get_shape()) for name in file.keys()}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """By case, the folder of Layerpress and that of LLM Compressor."""
    place = tmp_path_factory.mktemp("results")
    model = small_model.save_model(place / "model")
    samples = tiny_models.random_samples([32, 32, 32, 32])
    rows = program.write_samples(place / "rows.jsonl", samples)
    (place / "samples.json").write_text(json.dumps([[int(token) for token in sample] for sample in samples]))
    made = {}
    for number, (case, options) in enumerate(CASES.items()):
        ours = program.oneshot(model, place / f"ours{number}", "--dataset", rows, *options)
        made[case] = (ours, place / f"theirs{number}")
    places = [path for ours, theirs in made.values() for path in (ours / "recipe.yaml", theirs)]
    peer = subprocess.run([PYTHON, Path(__file__).with_name("peer_recipes.py"), model, place / "samples.json", *places],
                          capture_output=True, text=True, cwd=place, stdin=subprocess.DEVNULL, timeout=900)
    assert peer.returncode == 0, peer.stderr[-3000:]
    return made


@pytest.mark.parametrize("case", CASES)
def test_quantization_config(case, results):
    """Key by key, but the version of compressed-tensors."""
    ours, theirs = (json.loads((folder / "config.json").read_text())["quantization_config"] for folder in results[case])
    assert ours.keys() - {"version"} == theirs.keys() - {"version"}
    for key in ours.keys() - {"version"}:
        assert as_theirs(ours[key]) == theirs[key], key


@pytest.mark.parametrize("case", CASES)
def test_names_and_shapes(case, results):
    ours, theirs = (tensors(folder) for folder in results[case])
    assert ours == theirs
