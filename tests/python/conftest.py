"""Fixtures of the helper's tests: the helper in this process, tiny checkpoints, a real one where there is one."""

import io
import json
from pathlib import Path

import pytest
from support import tiny_checkpoints
from support.program import TEST_MODEL


class Outcome:
    """What a run left: exit code, the summary (None on failure), stderr, and the token file's samples."""

    def __init__(self, code, output, diagnostics, token_file):
        self.code = code
        self.summary = json.loads(output) if output else None
        self.error = diagnostics
        self.token_file = token_file

    @property
    def samples(self):
        from safetensors.numpy import load_file

        tensors = load_file(self.token_file)
        offsets = tensors["sample_offsets"]
        return [tensors["input_ids"][a:b].tolist() for a, b in zip(offsets, offsets[1:])]


@pytest.fixture
def prepare(tmp_path, words):
    """Runs the helper in this process; fields of the request as keyword arguments, `model` the word checkpoint."""
    from layerpress_data.command import answer
    from layerpress_frame.program import main

    def run(**fields):
        token_file = tmp_path / "out" / "samples.safetensors"
        token_file.parent.mkdir(exist_ok=True)
        request = {"model": str(words), "output": str(token_file), **fields}
        request = {name: str(value) if isinstance(value, Path) else value for name, value in request.items()}
        output, diagnostics = io.StringIO(), io.StringIO()
        code = main("data.prepare", answer, io.BytesIO(json.dumps(request).encode()), output, diagnostics)
        return Outcome(code, output.getvalue(), diagnostics.getvalue(), token_file)

    return run


@pytest.fixture
def fails(prepare):
    """Runs the helper, expects it to fail in one line that holds all `fragments` and to leave nothing behind."""

    def run(*fragments, code=2, **fields):
        outcome = prepare(**fields)
        assert outcome.code == code, outcome.error or outcome.summary
        assert outcome.error.startswith("error: [data.prepare] ")
        assert outcome.error.count("\n") == 1 and outcome.error.endswith("\n")
        assert "Traceback" not in outcome.error
        for fragment in fragments:
            assert fragment in outcome.error
        assert list(outcome.token_file.parent.iterdir()) == []
        return outcome

    return run


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A checkpoint that gives word number n, written `wN`, the token N: expected tokens can be read off a test."""
    return tiny_checkpoints.save_words(tmp_path_factory.mktemp("words"))


@pytest.fixture(scope="session")
def real_checkpoint():
    if not (TEST_MODEL / "tokenizer.json").is_file():
        pytest.skip(f"no checkpoint at {TEST_MODEL}: set LAYERPRESS_TEST_MODEL to one, or run ./demo, which makes it")
    return TEST_MODEL
