"""eval --tasks: benchmarks of lm-evaluation-harness, offline, on tasks of local files."""

import json
import os
import shutil
from pathlib import Path

import pytest
from support import program, tiny_models
from support.harness_tasks import CHOICES

GENERATION = """\
task: local_generation
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{written}}}}"
generation_kwargs: {{until: ["<none>"], do_sample: false, max_gen_toks: 2}}
filter_list: [{{name: flexible-extract, filter: [{{function: take_first}}]}}]
metric_list: [{{metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true}}]
"""
MISSING = """\
task: local_missing
dataset_path: no-org/no-data
dataset_name: main
test_split: test
output_type: multiple_choice
doc_to_text: "x"
doc_to_choice: ["a", "b"]
doc_to_target: 0
"""


def words(sample):
    return " ".join(f"w{token}" if token else "<unk>" for token in sample)


@pytest.fixture
def model(model, tmp_path):
    """The harness needs a token that ends texts."""
    copy = Path(shutil.copytree(model, tmp_path / "model"))
    settings = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps(settings | {"eos_token": "<unk>", "pad_token": "<unk>"}))
    return copy


@pytest.fixture
def tasks(model, tmp_path):
    """Rows whose right answers are what the model itself says, for half of them."""
    import torch
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    rows = []
    for number, sample in enumerate(tiny_models.random_samples([16] * 6, seed=8)):
        ids = [int(token) for token in sample[:12]]
        with torch.no_grad():
            said = loaded.generate(torch.tensor([ids]), max_new_tokens=2, do_sample=False)[0, 12:].tolist()
        written = words(said) if number % 2 == 0 else "w1 never"
        rows.append({"question": words(ids), "choices": [words(sample[12:14]), words(sample[14:16])], "answer": 1, "written": written})
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in {"choices": CHOICES, "generation": GENERATION}.items():
        (folder / f"{name}.yaml").write_text(text.format(name=f"local_{name}", rows=json.dumps(str(folder / "rows.jsonl"))))
    (folder / "missing.yaml").write_text(MISSING)
    return folder


@pytest.fixture
def variables(tmp_path):
    return {**os.environ, "HF_DATASETS_CACHE": str(tmp_path / "cache"), "HF_HUB_CACHE": str(tmp_path / "hub")}


@pytest.mark.nightly
def test_tasks_with_a_reference(model, results, rounding, tasks, variables):
    out = program.oneshot(model, results / "out", *rounding)
    found = program.run("eval", out, "--tasks", "local_choices,local_generation", "--task-folder", tasks, "--reference", model,
                        env=variables).json()
    assert found["engine"] == "transformers" and found["eval_time"] > 0 and "perplexity" not in found
    choices, generation = found["tasks"]["local_choices"], found["tasks"]["local_generation"]
    assert 0 <= choices["metrics"]["acc"] <= 1 and "flex_extract" not in choices
    assert generation["flex_extract"] == generation["metrics"]["exact_match,flexible-extract"]
    assert generation["reference"] == {"exact_match,flexible-extract": 0.5}
    assert generation["recovery"]["exact_match,flexible-extract"] == pytest.approx(generation["flex_extract"] / 0.5)


@pytest.mark.nightly
def test_table_limit_and_text(model, samples, tasks, variables):
    text = program.run("eval", model, "--tasks", "local_generation", "--task-folder", tasks, "--limit", "1", "--dataset", samples,
                       "--device", "cpu", "--table", env=variables).output
    assert "perplexity" in text and "local_generation exact_match,flexible-extract" in text and "1.0000" in text


@pytest.mark.nightly
def test_missing_data_and_tasks(model, tasks, variables):
    program.fails("eval", model, "--tasks", "local_missing", "--task-folder", tasks, env=variables,
                  fragments=["[eval.tasks] the data of no-org/no-data, main is not here", "--download",
                             "datasets.load_dataset('no-org/no-data', 'main')"])
    program.fails("eval", model, "--tasks", "no_such_task", env=variables, fragments=["unknown task 'no_such_task'"])
    program.fails("eval", model, "--tasks", "local_choices", "--task-folder", tasks, "--engine", "vllm", env=variables,
                  fragments=["--engine vllm", "install vllm"])


@pytest.mark.parametrize("options, fragment", [
    ([], "add --dataset or --tasks"),
    (["--tasks", "a", "--engine", "other"], "--engine: unknown value 'other'"),
    (["--tasks", "a", "--limit", "-1"], "--limit: -1 is negative"),
    (["--dataset", "a.jsonl", "--limit", "3"], "require --tasks"),
    (["--tasks", "a", "--task-folder", "no-folder"], "--task-folder: no-folder is not a directory"),
])
def test_contradictions(options, fragment, model):
    program.fails("eval", model, *options, fragments=[fragment], code=2)
