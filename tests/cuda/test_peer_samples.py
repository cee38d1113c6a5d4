"""How many samples the GPU benchmark gives LLM Compressor in the time that is left."""
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ["examples/demo", "benchmarks/peer_comparison", "benchmarks/memory_cases", "benchmarks/gpu"]
# A batch of two linears and a single one: 7 of the 10 seconds do not grow with the samples.
MESSAGES = """
00:01 | compress_module_list | INFO - Quantizing 2 module(s): ['gate', 'up']
00:04 | GPTQ | METRIC - time 3.00s
00:04 | GPTQ | METRIC - error 5.00
00:04 | GPTQ | METRIC - time 3.10s
00:04 | GPTQ | METRIC - error 6.00
00:04 | compress_module_list | INFO - Quantizing 1 module(s): ['down']
00:08 | GPTQ | METRIC - time 4.00s
"""


@pytest.fixture
def peer(monkeypatch):
    for folder in FOLDERS:
        monkeypatch.syspath_prepend(ROOT / folder)
    monkeypatch.delitem(sys.modules, "shapes", raising=False)  # the other benchmark's
    return importlib.import_module("peer")


def run_of(peer, samples: int):
    """5 s to start, 1 s to load, 10 s of work, 2 s to save."""
    return peer.PeerRun(peer.Watched(18, 0, 0, MESSAGES),
                        {"load_seconds": 1, "oneshot_seconds": 10, "save_seconds": 2, "samples": samples})


def test_solving_is_counted_once_for_a_batch(peer):
    assert run_of(peer, 6).solve_seconds == 7


def test_samples_that_a_time_suffices_for(peer):
    run = run_of(peer, 6)
    assert run.affordable(18) == 6
    assert run.affordable(15 + 30) == 60
    assert run.affordable(5 + 4 * 13, layers=4) == 6
    assert run.affordable(10) < 0


def test_runs_that_are_begun(peer):
    first = peer.Job("first", peer.LlamaShape(4))
    whole = peer.Job("whole", peer.LlamaShape(32), first)
    runs = {}
    assert peer.samples_for(first, 64, runs, 100) == 64
    assert peer.samples_for(first, 64, runs, -1) == 0
    assert peer.samples_for(whole, 64, runs, 100) == 0  # nothing says what it would take
    runs["first"] = run_of(peer, 64)
    assert peer.samples_for(first, 512, runs, 15 + 3 * 8) == 512
    assert peer.samples_for(first, 512, runs, 15 + 3 * 4) == 256
    assert peer.samples_for(first, 512, runs, 15 + 3 * 1.5) == 0  # hardly more than before
    assert peer.samples_for(whole, 64, runs, 5 + 8 * 13) == 64
    assert peer.samples_for(whole, 64, runs, 5 + 8 * 11.5) == 32
    assert peer.samples_for(whole, 64, runs, 50) == 0
