"""Every call that the kernel may refuse, refused once: one error line, nothing that looks finished, and a run that goes on from there."""

import os
import subprocess
from pathlib import Path

import pytest
import torch
from support import program, tiny_checkpoints, tiny_models
from support.random_kills import differing, result
from support.selection import nightly_but
from support.watched_runs import JOURNAL, clear, unfinished

# Names of the output, and options.
RUNS = {
    "folder": ("out", ["--group-size", "32", "--max-shard-size", "60KB"]),
    "gguf": ("out.gguf", ["--scheme", "Q8_0"]),
    "spilling": ("out", ["--group-size", "32", "--sequential-offload-device", "disk"]),
    "importance": ("out", ["--group-size", "32", "--imatrix", "IMATRIX"]),
}
IMPORTANCE = ".layerpress-importance.gguf"  # stays beside the journal, until a finished output is known to be on the disk
KINDS = ["write", "fsync", "rename", "mmap", "open", "allocation"]
MOST = int(os.environ.get("LAYERPRESS_FAILING_CALLS", "1000000"))  # of a kind that fail, one in each run


@pytest.fixture(scope="module")
def failing_calls(tmp_path_factory):
    library = tmp_path_factory.mktemp("library") / "failing_calls.so"
    source = Path(__file__).with_name("failing_calls.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return library


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with a small model and its data, in which calls count."""
    folder = tmp_path_factory.mktemp("place")
    tiny_models.save(folder / "model", dtype=torch.bfloat16, vocab_size=600)
    tiny_checkpoints.byte_level().save(str(folder / "model" / "tokenizer.json"))  # which a GGUF contains
    program.write_token_file(folder / "tokens.safetensors", tiny_models.random_samples([40, 64, 50]))
    (folder / "results").mkdir()
    return folder


class Case:
    """Runs of one kind, in which the n-th call of a kind fails."""

    def __init__(self, place, library, run, kind):
        name, options = RUNS[run]
        self.place, self.library, self.kind = place, library, kind
        self.out = place / "results" / name
        imatrix = place / "results" / "imatrix.gguf"
        self.beside = [imatrix] if "IMATRIX" in options else []
        options = [imatrix if option == "IMATRIX" else option for option in options]
        self.arguments = ["oneshot", place / "model", "--output", self.out, *options, "--dataset", place / "tokens.safetensors",
                          "--threads", "1"]
        clear(self.out.parent)

    def start(self, number, *more, count=None):
        environment = {**os.environ, "LD_PRELOAD": str(self.library), "FAILING_CALL": self.kind, "FAILING_PLACE": str(number),
                       "FAILING_BELOW": str(self.place)}
        if count is not None:
            environment["FAILING_COUNT"] = str(count)
        return program.run(*self.arguments, *more, code=None, env=environment)

    def files(self):
        return {**result(self.out), **{file.name: file.read_bytes() for file in self.beside}}

    def check_ended(self, outcome, expected):
        """Nothing half-written at the output's place; a message that says what failed."""
        if outcome.code == 0:  # it does without this call
            assert self.files() == expected and self.left() == []
            return
        assert outcome.code == 1 and outcome.error, outcome.errors
        assert str(self.place) in outcome.error or "memory" in outcome.error, outcome.error
        if self.out.exists():
            assert differing(self.out, {self.out.name: expected[self.out.name]} if self.out.is_file() else self.expected_folder(expected),
                             ignored=[JOURNAL, IMPORTANCE]) == []
        assert all(left == unfinished(self.out) for left in self.left()), self.left()

    def expected_folder(self, expected):
        return {name: data for name, data in expected.items() if name not in {file.name for file in self.beside}}

    def left(self):
        return [path for path in self.out.parent.iterdir() if path != self.out and path not in self.beside]

    def check_resumed(self, expected):
        outcome = program.run(*self.arguments, "--resume", code=None)
        assert outcome.code == 0, outcome.errors
        assert self.files() == expected and self.left() == []


def places(count):
    """Up to MOST numbers of calls, evenly spread, the first and the last among them."""
    chosen = min(count, MOST)
    return sorted({1 + round(i * (count - 1) / max(1, chosen - 1)) for i in range(chosen)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("run", nightly_but(RUNS))
def test_each_call_fails_once(run, kind, place, failing_calls, tmp_path):
    case = Case(place, failing_calls, run, kind)
    assert case.start(0, count=tmp_path / "count").code == 0
    expected = case.files()
    calls = (tmp_path / "count").stat().st_size
    assert calls > 0
    failed = 0
    for number in places(calls):
        clear(case.out.parent)
        outcome = case.start(number)
        failed += outcome.code != 0
        try:
            case.check_ended(outcome, expected)
            case.check_resumed(expected)
        except AssertionError as fault:
            raise AssertionError(f"{kind} {number} of {calls}: {fault}") from fault
    print(f"crash: {run}, {kind}: {len(places(calls))} of {calls} calls failed, one each; {failed} ended the run")
    assert failed > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_fails(kind, place, failing_calls, tmp_path):
    """With every commit: one in the middle of a run."""
    case = Case(place, failing_calls, "folder", kind)
    assert case.start(0, count=tmp_path / "count").code == 0
    expected = case.files()
    clear(case.out.parent)
    case.check_ended(case.start((tmp_path / "count").stat().st_size // 2), expected)
    case.check_resumed(expected)
