"""vLLM loads the results and computes with them what `layerpress eval` computes (scripts/setup --vllm)."""

import json
import subprocess
from pathlib import Path

import pytest
from safetensors.torch import load_file
from support import program

PYTHON = program.REPOSITORY / ".venv-vllm" / "bin" / "python"
MODEL = program.TEST_MODEL
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(not PYTHON.exists(), reason="no .venv-vllm; scripts/setup --vllm makes it"),
              pytest.mark.skipif(not MODEL.is_dir(), reason=f"no checkpoint at {MODEL}; ./demo makes it")]


def write_rows(path, pieces):
    path.write_text("".join(json.dumps({"input_ids": piece}) + "\n" for piece in pieces))
    return path


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Rows to calibrate on, and others to measure."""
    from tokenizers import Tokenizer

    folder = tmp_path_factory.mktemp("texts")
    text = (program.REPOSITORY / "docs" / "design.md").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(MODEL / "tokenizer.json")).encode(text).ids
    pieces = [ids[start:start + 160] for start in range(0, 16 * 160, 160)]
    return write_rows(folder / "calibration.jsonl", pieces[:8]), write_rows(folder / "others.jsonl", pieces[8:])


def vllm_perplexity(model, rows):
    process = subprocess.run([PYTHON, Path(__file__).with_name("vllm_perplexity.py"), model, rows], capture_output=True, text=True,
                             cwd=rows.parent, stdin=subprocess.DEVNULL, timeout=900)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.splitlines()[-1])["perplexity"]


def own_perplexity(model, rows, *options):
    return program.run("eval", model, "--dataset", rows, *options).json()["perplexity"]


@pytest.fixture(scope="module")
def plain(texts):
    return vllm_perplexity(MODEL, texts[1]), own_perplexity(MODEL, texts[1])


def test_plain_model(plain):
    """How far both are apart without any compression."""
    theirs, ours = plain
    assert theirs == pytest.approx(ours, rel=0.005)


@pytest.mark.parametrize("scheme, options, rounded", [("W4A16", ["--group-size", "64", "--quality", "best"], False),
                                                      ("W8A8", ["--quality", "fast"], True),
                                                      ("W8A8", ["--quality", "fast", "--ignore", ""], True)])  # the head, too
def test_results(scheme, options, rounded, texts, plain, tmp_path):
    """Apart from the plain model by what the scheme loses, and from each other by much less."""
    out = tmp_path / "out"
    subprocess.run([program.PROGRAM, "oneshot", MODEL, "--output", out, "--scheme", scheme, *options, "--dataset", texts[0],
                    "--num-calibration-samples", "8", "--no-progress"], check=True, capture_output=True)
    if scheme == "W4A16":
        scales = [tensor for name, tensor in load_file(out / "model.safetensors").items() if name.endswith("weight_scale")]
        assert any((scale < 0).any() for scale in scales), "vLLM is to compute with negative scales, too"
    ours = own_perplexity(out, texts[1], *(["--quantize-activations"] if rounded else []))
    theirs = vllm_perplexity(out, texts[1])
    assert theirs == pytest.approx(ours, rel=0.015)
    assert theirs < 1.5 * plain[0]
