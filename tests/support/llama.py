"""llama.cpp, from the environment of llama-cpp-python (scripts/setup --llama)."""

import json
import subprocess

import pytest

from support import program

PYTHON = program.REPOSITORY / ".venv-llama" / "bin" / "python"
WORKER = program.REPOSITORY / "tests" / "support" / "llama_worker.py"
needs_llama = pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup --llama installs llama.cpp")


def run(*arguments, text=""):
    process = subprocess.run([PYTHON, WORKER, *map(str, arguments)], input=text, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


def ids(file, texts):
    """For each text the ids that llama.cpp gives it with a file's tokenizer, without and with the tokens that begin and end texts."""
    return json.loads(run("ids", file, text=json.dumps(texts)))


def logits(file, tokens):
    """The logits that llama.cpp computes for each token of a text, in fp32."""
    return json.loads(run("logits", file, text=json.dumps(tokens)))


def quantize(jobs, folder):
    """Runs llama-quantize's function on each job: source, target, file_type, importance."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    run("quantize", path)
