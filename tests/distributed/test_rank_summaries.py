"""What the summary says of every rank, and what a rank takes."""

import json
import os
import socket
from pathlib import Path

import pytest

# After planned_runs, which makes the benchmark's checkpoint maker importable.
from llama_checkpoint import LlamaShape, make_checkpoint
from support import planned_runs, program, ranked_runs

PHASES = {"open", "data", "plan", "forward", "gram", "reduce", "factorize", "solve", "gather", "write", "finish"}


def summary_of(ranks, exact, out, path, *options):
    ranked_runs.run(ranks, exact.folder, out, *exact.solving, "--summary", path, *options)
    return json.loads(path.read_text())


@pytest.fixture
def summary(exact, results, tmp_path):
    return summary_of(3, exact, results / "out", tmp_path / "summary.json")


def test_every_rank_is_there(summary, exact):
    assert summary["world_size"] == 3
    assert [entry["rank"] for entry in summary["ranks"]] == [0, 1, 2]
    assert sum(entry["samples"] for entry in summary["ranks"]) == len(exact.samples)
    assert sum(entry["tokens"] for entry in summary["ranks"]) == sum(map(len, exact.samples))
    counts = [entry["samples"] for entry in summary["ranks"]]
    assert max(counts) - min(counts) <= 1
    assert {entry["host"] for entry in summary["ranks"]} == {socket.gethostname()}


def test_card_names_the_number_of_ranks(summary):
    """Codes depend on it where sums are not exact."""
    card = (Path(summary["output"]) / "README.md").read_text()
    assert "    torchrun --no-python --nproc-per-node 3 layerpress oneshot " in card


def test_times(summary):
    for entry in summary["ranks"]:
        assert PHASES <= entry["phases"].keys()
        assert 0 < sum(phase["seconds"] for phase in entry["phases"].values()) <= entry["seconds"] * 1.01
        assert 0 <= entry["wait_seconds"] <= entry["seconds"] and 0 <= entry["save_seconds"] <= entry["seconds"]


def test_ranks_have_cores_of_their_own(exact, results, tmp_path):
    """On a crowded machine, a run that takes seconds gives them up again."""
    for attempt in range(3):
        found = summary_of(2, exact, results / f"out-{attempt}", tmp_path / "summary.json", "--threads", "1")
        own = [set(entry["cores"]) for entry in found["ranks"]]
        assert all(own)
        if len(own[0] | own[1]) == 1:
            pytest.skip("one core cannot be divided")
        if not own[0] & own[1]:
            return
    pytest.fail(f"two ranks share cores: {own}")


def test_ranks_with_more_threads_than_own_cores_share_them(exact, results, tmp_path):
    threads = len(os.sched_getaffinity(0))
    found = summary_of(2, exact, results / "out", tmp_path / "summary.json", "--threads", str(threads))
    assert found["ranks"][0]["cores"] == found["ranks"][1]["cores"]


def test_modules_of_all_ranks(summary, exact, results, tmp_path):
    """The same modules as on one process, each once, with the error and the tokens of the whole."""
    program.oneshot(exact.folder, results / "alone", *exact.solving, "--threads", "1", "--summary", tmp_path / "alone.json")
    alone = {entry["module"]: entry for entry in json.loads((tmp_path / "alone.json").read_text())["modules"]}
    assert sorted(entry["module"] for entry in summary["modules"]) == sorted(alone)
    for entry in summary["modules"]:
        wanted = alone[entry["module"]]
        assert entry["tokens"] == wanted["tokens"] == sum(map(len, exact.samples))
        assert entry["weight_error"] == pytest.approx(wanted["weight_error"], rel=1e-4)
        assert entry["output_error"] == pytest.approx(wanted["output_error"], rel=1e-3)


def triangle_bytes(exact):
    """fp32 upper triangles of all distinct inputs: q/k/v and gate/up of every layer, and the head's."""
    config = json.loads((exact.folder / "config.json").read_text())
    inputs = 2 * config["num_hidden_layers"] + 1
    return inputs * config["hidden_size"] * (config["hidden_size"] + 1) // 2 * 4


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_sent(ranks, exact, results, tmp_path):
    """Triangles are reduced, packed codes are gathered; nothing of the size of a weight or of all activations travels."""
    summary = summary_of(ranks, exact, results / "out", tmp_path / "summary.json")
    share = (ranks - 1) / ranks
    for entry in summary["ranks"]:
        reduced = 2 * share * triangle_bytes(exact)
        assert 0.9 * reduced < entry["sent_bytes"] < reduced + share * 2 * summary["output_bytes"] + 500_000


def test_one_process_says_the_same(exact, results, tmp_path):
    summary = summary_of(1, exact, results / "out", tmp_path / "summary.json")
    assert summary["world_size"] == 1 and len(summary["ranks"]) == 1
    assert summary["ranks"][0]["sent_bytes"] == 0


def test_memory_of_a_rank(tmp_path):
    """No rank takes more than one process takes alone, where Gram matrices decide."""
    shape = LlamaShape(num_hidden_layers=1, hidden_size=512, intermediate_size=4096, num_attention_heads=8,
                       num_key_value_heads=2, vocab_size=planned_runs.VOCABULARY)
    model = make_checkpoint(tmp_path / "model", shape, block_elements=1 << 21)
    how = ["--group-size", "64", *planned_runs.data(tmp_path, 4, 64), "--observer", "minmax"]
    peaks = {}
    for ranks in (1, 2):
        path, folder = tmp_path / f"{ranks}.json", tmp_path / f"results-{ranks}"
        folder.mkdir()
        ranked_runs.run(ranks, model, folder / "out", *how, "--summary", path)
        peaks[ranks] = [entry["peak_anonymous_bytes"] for entry in json.loads(path.read_text())["ranks"]]
    assert max(peaks[2]) <= 1.05 * peaks[1][0], peaks
