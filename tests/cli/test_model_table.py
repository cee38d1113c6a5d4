"""The columns flex_extract and eval_time of benchmarks/distributed/table, with a program that answers as `eval --tasks` does."""

import json

import pytest
from model_table import row, score
from ranked_process import RankedJob, RankedRuns, Task

ANSWER = {"engine": "vllm", "eval_time": 3.5, "tasks": {"gsm8k": {"metrics": {"exact_match,flexible-extract": 0.25}, "flex_extract": 0.25},
                                                        "other": {"metrics": {"acc": 1.0}}}}


@pytest.fixture
def runs(tmp_path):
    made = RankedRuns(2, RankedJob(tmp_path / "name", tmp_path, tmp_path, 8, 16, 32, 4, 1, tmp_path))
    made.summaries = [{"ranks": [{"seconds": 1.0, "peak_bytes": 2e9, "save_seconds": 0.5}, {"seconds": 2.0, "peak_bytes": 1e9, "save_seconds": 0.1}]}]
    return made


@pytest.fixture
def program_says(tmp_path, monkeypatch):
    """Puts a program in the place of Layerpress; returns the file that gets its arguments."""

    def put(command):
        script = tmp_path / "program"
        script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\n{command}\n')
        script.chmod(0o755)
        monkeypatch.setattr("ranked_process.PROGRAM", script)
        return tmp_path / "arguments"

    return put


def test_task(runs, program_says, tmp_path):
    arguments = program_says(f"echo '{json.dumps(ANSWER)}'")
    assert score(runs, Task("gsm8k", tmp_path / "tasks", 5, "vllm")) == "0.2500"
    assert row(runs, "0.2500") == ["name", "2", "2.00", "2.00", "0.50", "0.2500", "3.50"]
    assert arguments.read_text().split() == ["eval", str(tmp_path / "name-2-ranks"), "--tasks", "gsm8k", "--engine", "vllm", "--task-folder",
                                             str(tmp_path / "tasks"), "--limit", "5", "--no-progress"]
    with pytest.raises(ValueError, match="no filter flexible-extract"):
        score(runs, Task("other", None, 0, "transformers"))


def test_missing_data_and_other_failures(runs, program_says, monkeypatch):
    """Without the task's data the column has other measures; other failures end the table."""
    program_says("echo 'error: [eval.tasks] the data of openai/gsm8k, main is not here (...)' >&2; exit 1")
    monkeypatch.setattr("model_table.evaluate", lambda runs: runs.quality.update(kl_divergence=0.1, perplexity=9))
    assert score(runs, Task("gsm8k", None, 0, "transformers")) == "KL 0.1000, perplexity 9.00"
    program_says("echo 'error: [eval.tasks] something else' >&2; exit 1")
    with pytest.raises(Exception, match="something else"):
        score(runs, Task("gsm8k", None, 0, "transformers"))
