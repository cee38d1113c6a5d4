"""lm-evaluation-harness runs on a saved checkpoint as its users run it: offline, with a task from two local files."""

import json
import math
import os
import subprocess
import sys

import pytest
from support import ranked_runs, tiny_models
from support.exact_model import save_tokenizer
from support.harness_tasks import CHOICES

PERPLEXITY = """\
task: layerpress_perplexity
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{question}}}}"
metric_list: [{{metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}}]
"""


def words(sample):
    return " ".join(f"w{token}" for token in sample)


@pytest.fixture
def tasks(tmp_path):
    folder = tmp_path / "tasks"
    folder.mkdir()
    rows = [{"question": words(sample[:12]), "choices": [words(sample[12:14]), words(sample[14:16])], "answer": 1}
            for sample in tiny_models.random_samples([16] * 6, seed=8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in {"choices": CHOICES, "perplexity": PERPLEXITY}.items():
        (folder / f"{name}.yaml").write_text(text.format(name=f"layerpress_{name}", rows=json.dumps(str(folder / "rows.jsonl"))))
    return folder


def harness(model, tasks, folder):
    """The harness's own results file."""
    command = [sys.executable, "-m", "lm_eval", "run", "--model", "hf", "--model_args", f"pretrained={model},dtype=float32",
               "--tasks", "layerpress_choices,layerpress_perplexity", "--include_path", tasks, "--device", "cpu",
               "--batch_size", "1", "--output_path", folder]
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "2"}
    outcome = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=150, env=environment,
                             stdin=subprocess.DEVNULL)
    assert outcome.returncode == 0, outcome.stderr[-3000:]
    return json.loads(next(folder.rglob("results_*.json")).read_text())["results"]


@pytest.mark.nightly
def test_harness_on_a_checkpoint_of_two_ranks(exact, results, tmp_path, tasks):
    model = exact.with_settings(tmp_path / "model")
    save_tokenizer(model)
    out = ranked_runs.run(2, model, results / "out", *exact.solving)
    (tmp_path / "harness").mkdir()
    found = harness(out, tasks, tmp_path / "harness")
    assert 0 <= found["layerpress_choices"]["acc,none"] <= 1
    perplexity = found["layerpress_perplexity"]["word_perplexity,none"]
    assert math.isfinite(perplexity) and 1 < perplexity < 1e12
