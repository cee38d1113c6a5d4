"""The other functions of the package, its errors, its stubs, and how it is imported."""

import copy
import json
import logging
import os
import pickle
import re
import shutil
import subprocess
import sys

import pytest
from support import program


def test_modifiers_refuse_what_recipes_refuse():
    from layerpress.modifiers import AWQModifier, GPTQModifier, QuantizationModifier, QuIPModifier, SmoothQuantModifier, SpinQuantModifier
    from layerpress.modifiers.awq import AWQMapping
    from layerpress.modifiers.quantization import GPTQModifier as same

    import layerpress

    assert same is GPTQModifier
    with pytest.raises(layerpress.RecipeError, match=r"dampening_fraction.*did you mean dampening_frac"):
        GPTQModifier(scheme="W4A16", dampening_fraction=0.1)
    with pytest.raises(layerpress.RecipeError, match="W5"):
        QuantizationModifier(scheme="W5")
    with pytest.raises(layerpress.RecipeError, match="smoothing_strength 2"):
        SmoothQuantModifier(smoothing_strength=2)
    with pytest.raises(layerpress.RecipeError, match="QuIPModifier is not implemented; .*use SpinQuantModifier"):
        QuIPModifier(rotations=["v"])
    with pytest.raises(layerpress.RecipeError, match="'rotations' has the wrong type"):
        SpinQuantModifier(rotations="R1")
    with pytest.raises(layerpress.RecipeError, match="SmoothQuantModifier: an argument is NaN or infinite"):
        SmoothQuantModifier(smoothing_strength=float("nan"))
    with pytest.raises(layerpress.RecipeError, match="n_grid is 1"):
        AWQModifier(n_grid=1)
    assert AWQModifier(mappings=[AWQMapping("re:.*up_proj", ["re:.*down_proj"])]).arguments["mappings"][0]["smooth_layer"] == "re:.*up_proj"
    AWQModifier(duo_scaling="both", scheme="W4A16_ASYM", targets=["Linear"], ignore=["lm_head"])
    assert "W4A16" in repr(GPTQModifier(scheme="W4A16"))


def test_modifiers_change(model, samples, tmp_path):
    from layerpress.modifiers import QuantizationModifier

    import layerpress

    recipe = QuantizationModifier(scheme="W4A16", ignore=["lm_head"])
    assert copy.deepcopy(recipe) == recipe and pickle.loads(pickle.dumps(recipe)) == recipe
    recipe.scheme = "W8A8"
    recipe.ignore.append("re:.*mlp.*")
    assert (recipe.scheme, recipe.ignore) == ("W8A8", ["lm_head", "re:.*mlp.*"])
    with pytest.raises(layerpress.RecipeError, match="W5"):
        recipe.scheme = "W5"
    with pytest.raises(layerpress.RecipeError, match="unknown argument 'sheme'"):
        recipe.sheme = "W8A8"
    with pytest.raises(AttributeError, match="no argument targets"):
        _ = recipe.targets
    with pytest.raises(layerpress.RecipeError, match="no text, number or list"):
        recipe.scheme = object()
    derived = type("Derived", (QuantizationModifier,), {})(scheme="W8A8")
    derived.ignore += ["lm_head"]
    assert derived.arguments == {"scheme": "W8A8", "ignore": ["lm_head"]}
    layerpress.oneshot(model=model, recipe=derived, output_dir=tmp_path / "derived", progress=False)
    layerpress.oneshot(model=model, recipe=recipe, output_dir=tmp_path / "out", progress=False)
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["config_groups"]["group_0"]["weights"]["num_bits"] == 8
    assert any("mlp" in name for name in config["ignore"])


def test_schemes_of_compressed_tensors(model, samples, tmp_path):
    """Scripts describe groups with its classes."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, QuantizationStrategy, QuantizationType
    from layerpress.modifiers import QuantizationModifier

    import layerpress

    weights = QuantizationArgs(num_bits=8, type=QuantizationType.INT, strategy=QuantizationStrategy.CHANNEL, symmetric=True, dynamic=False)
    recipe = QuantizationModifier(config_groups={"group_0": QuantizationScheme(targets=["Linear"], weights=weights)}, ignore=["lm_head"])
    summary = layerpress.oneshot(model=model, recipe=recipe, output_dir=tmp_path / "out", progress=False)
    assert {module["scheme"] for module in summary.details["modules"]} == {"8-bit int, channel"}
    assert f"{summary.details['modules'][0]['weight_error']:.5f}" in str(summary)


@pytest.mark.parametrize("arguments, fragment", [
    ({"num_calibration_sample": 3}, "num_calibration_sample: there is no such argument.*did you mean num_calibration_samples"),
    ({"propagate_error": False, "pipeline": "sequential"}, "propagate_error=False is not possible: pipeline='basic'"),
    ({"num_calibration_samples": "many"}, "num_calibration_samples: expected int, got 'many'"),
    ({"num_calibration_samples": True}, "num_calibration_samples: expected int, got True"),
    ({"seed": -1}, "seed: expected int from 0 to 18446744073709551615, got -1"),
    ({"pipeline": "datafree"}, "pipeline='datafree': calibration data is needed by GPTQModifier"),
    ({"splits": ["a", "b"]}, "is not one split"),
    ({"splits": "train[1:"}, "is not one: write it as train"),
    ({"dataset": (row for row in [[1, 2]]), "splits": "train[:50%]"}, "generator has no slices"),
    ({"schemes": "W4A16,W9", "target_bits": 5}, "--schemes|schemes: unknown scheme 'W9'"),
    ({"target_bits": 0}, "0 is no number of bits"),
    ({"dataset": [{"words": "w1"}]}, "row 1 has the columns words; wanted is input_ids, text, messages or conversations"),
    ({"dataset": [{"input_ids": [1.5]}]}, "row 1: '1.5' is no token id"),
    ({"dataset": [{"input_ids": [1], "pixel_values": [0.0]}]}, "pixel_values describes images or sound, which this model has no part for"),
    ({"dataset": ["w1", [1, 2]]}, "row 2: the rows before hold another kind of data"),
    ({"dataset": []}, "the dataset has no rows"),
    ({"dataset": 5}, r"5 \(int\) is no dataset"),
    ({"dataset": [{"messages": [{"role": "user", "content": "w1"}], "tools": [len]}]}, "row 1: a tool is a function; pass its JSON schema"),
    ({"tokenizer": 5}, r"tokenizer: 5 \(int\) is neither a tokenizer nor a processor"),
    ({"num_calibration_samples": -3}, "the number of samples is -3; it must be positive"),
    ({"recipe": []}, "the list of modifiers is empty"),
    ({"recipe": [object()]}, "object is no modifier of layerpress"),
])
def test_refused_arguments(arguments, fragment, model, tmp_path):
    import layerpress

    with pytest.raises(layerpress.Error, match=fragment):
        layerpress.oneshot(model, **{"dataset": [[1, 2]], "output_dir": tmp_path / "out", "progress": False, **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how, said", [
    ({"output_dir": "out.gguf", "scheme": "Q4_K_M"}, "cannot become a GGUF, whose tokenizer is read from the model's folder; pass the folder or id"),
])
def test_refused_in_memory(how, said, loaded, samples, tmp_path, monkeypatch):
    import layerpress

    monkeypatch.chdir(tmp_path)
    with pytest.raises(layerpress.UsageError, match=said):
        layerpress.oneshot(loaded, dataset=samples, progress=False, **how)
    assert list(tmp_path.iterdir()) == []


def test_a_model_in_memory_without_a_tokenizer_takes_a_file_of_token_ids(model, tmp_path):
    """As the command does; a file of texts needs one."""
    from transformers import AutoModelForCausalLM

    import layerpress

    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"input_ids": list(range(3, 40))}) + "\n" for _ in range(4)))
    loaded = AutoModelForCausalLM.from_config(AutoModelForCausalLM.from_pretrained(model).config)
    loaded.config._name_or_path = ""
    layerpress.oneshot(loaded, dataset=rows, scheme="W8A8", output_dir=tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "model.safetensors").is_file()
    rows.write_text(json.dumps({"text": "some words"}) + "\n")
    with pytest.raises(layerpress.UsageError, match="has no tokenizer"):
        layerpress.oneshot(loaded, dataset=rows, scheme="W8A8", output_dir=tmp_path / "other", progress=False)


def test_static_scales_need_data(model, tmp_path):
    import layerpress

    with pytest.raises(layerpress.UsageError, match=r"needed by QuantizationModifier \(static scales of inputs in FP8\).*FP8_DYNAMIC"):
        layerpress.model_free_ptq(model, tmp_path / "out", scheme="FP8", progress=False)


def test_keywords_without_effect(model, tmp_path):
    """log_dir= changes no result, and a run may compress no module."""
    from layerpress.modifiers import SpinQuantModifier

    import layerpress

    summary = layerpress.oneshot(model, recipe=SpinQuantModifier(rotations=["R2"]), output_dir=tmp_path / "out", log_dir="logs", progress=False)
    assert "none compressed" in str(summary) and "worst modules" not in str(summary)
    assert not (tmp_path / "logs").exists()


def test_killed_process_leaves_nothing_for_long(model, tmp_path, monkeypatch):
    """Its folder of temporary files is removed by the next call, as those of the program."""
    script = ("import os, signal, layerpress\n"
              "def rows():\n    yield [1, 2]\n    os.kill(os.getpid(), signal.SIGKILL)\n"
              "class Rows:\n    __iter__ = lambda self: rows()\n"
              f"layerpress.oneshot({str(model)!r}, dataset=Rows(), output_dir={str(tmp_path / 'out')!r})")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(program.PROGRAM.parent / "python")}
    subprocess.run([sys.executable, "-c", script], env=environment, check=False, capture_output=True)
    left = list(temporary.rglob("rows.jsonl"))
    assert len(left) == 1
    os.utime(left[0].parent, (0, 0))
    subprocess.run([sys.executable, "-c", script.replace("os.kill(os.getpid(), signal.SIGKILL)", "raise ValueError")], env=environment,
                   check=False, capture_output=True)
    assert list(temporary.iterdir()) == []


def test_calibration_on_the_original_weights(model, samples, tmp_path):
    """Scripts of LLM Compressor ask for it by another keyword."""
    from layerpress.modifiers import GPTQModifier

    import layerpress

    summary = layerpress.oneshot(model, dataset=samples, recipe=GPTQModifier(scheme="FP8_DYNAMIC", ignore=["lm_head"]),
                                 output_dir=tmp_path / "out", propagate_error=False, progress=False)
    assert summary.details["plan"]["pipeline"] == "basic"


def test_errors_have_the_kinds_of_the_library(model, tmp_path):
    import layerpress

    with pytest.raises(layerpress.CheckpointError, match="neither a directory"):
        layerpress.inspect("no-org/no-model")
    with pytest.raises(layerpress.UsageError) as caught:
        layerpress.oneshot(model, dataset=[[1, 2]])
    assert isinstance(caught.value, ValueError) and "output= is required" in str(caught.value)
    with pytest.raises(layerpress.MemoryError) as caught:
        layerpress.oneshot(model, dataset=[[1, 2]], output_dir=tmp_path / "out", group_size=32, memory_budget="1MiB", progress=False)
    assert isinstance(caught.value, MemoryError)


def test_results_show_themselves(model, samples):
    import layerpress

    inspection = layerpress.inspect(model)
    assert inspection.architecture == "LlamaForCausalLM" and "model.layers.2" in str(inspection)
    assert "<table>" in inspection._repr_html_() and "model.layers.2" in inspection._repr_html_()
    plan = layerpress.plan(model, dataset=samples, group_size=32)
    assert plan.peak_bytes > 0 and plan.samples == len(samples) and "width:160px" in plan._repr_html_()
    evaluation = layerpress.evaluate(model, samples, reference=model)
    assert evaluation.kl_divergence == 0 and "model.layers.2" in str(evaluation)
    assert layerpress.picture(model)._repr_svg_().startswith("<")


def test_what_verify_finds_is_printed(model, tmp_path):
    import layerpress

    sound = layerpress.verify(model)
    assert re.search(r"faults +none\nwarnings +none", str(sound)) and "bfloat16" not in str(sound)
    damaged = shutil.copytree(model, tmp_path / "damaged")
    (damaged / "config.json").unlink()
    found = layerpress.verify(damaged)
    assert re.search(r"faults +1\n", str(found)) and "fault  files  " in str(found) and "has no config.json" in str(found)
    assert "has no config.json" in found._repr_html_()


@pytest.mark.parametrize("function, arguments", [
    ("evaluate", {"dataset": [[1, 2]]}), ("inspect", {"sensitivity": True, "dataset": [[1, 2]]}), ("picture", {}),
    ("prepare", {"dataset": [[1, 2]], "output": "tokens.safetensors"}), ("verify", {}),
])
def test_models_in_memory_are_for_runs(function, arguments, loaded):
    import layerpress

    with pytest.raises(layerpress.UsageError, match="a LlamaForCausalLM is neither a folder nor an id; save a model in memory"):
        getattr(layerpress, function)(loaded, **arguments)


def test_sensitivity(model, samples, tmp_path):
    import layerpress

    file = program.write_samples(tmp_path / "samples.jsonl", samples)
    figures = layerpress.inspect(model, sensitivity=True, schemes=["NVFP4", "FP8_DYNAMIC"], dataset=file)
    assert figures.order == ["NVFP4", "FP8_DYNAMIC"] and figures.samples == len(samples)
    assert all(own["schemes"]["NVFP4"]["error"] > own["schemes"]["FP8_DYNAMIC"]["error"] > 0 for own in figures.modules)
    same = layerpress.inspect(model, sensitivity=True, schemes=["NVFP4", "FP8_DYNAMIC"], dataset=samples)
    assert same.modules == figures.modules
    assert f"{same.modules[0]['schemes']['NVFP4']['error']:.5f}" in str(same)
    splits = {"test": samples, "train": samples[:1]}
    assert layerpress.prepare(model, splits, tmp_path / "tokens.safetensors", dataset_split="test").samples == len(samples)
    with pytest.raises(layerpress.UsageError, match="leave out quality="):
        layerpress.inspect(model, sensitivity=True, schemes=["NVFP4"], dataset=file, quality="fast")


def test_stubs_are_those_of_the_tables():
    done = subprocess.run([sys.executable, program.REPOSITORY / "scripts" / "python_stubs.py", "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("imports", ["import torch, layerpress", "import layerpress, torch"])
def test_import_orders(imports, model, tmp_path):
    script = (f"import sys; sys.path.insert(0, {str(program.PROGRAM.parent / 'python')!r})\n{imports}\n"
              f"layerpress.oneshot({str(model)!r}, algorithm='rtn', group_size=32, output_dir={str(tmp_path / 'out')!r}, progress=False)\n"
              "print(torch.ones(300, 300).mm(torch.ones(300, 300)).sum().item())")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and float(done.stdout) == 300**3, done.stderr


def test_names_of_datasets(monkeypatch, model, tmp_path):
    """LLM Compressor's names stand for datasets of the hub, of whose rows it makes messages or texts."""
    import datasets

    import layerpress

    asked = []

    def load_dataset(name, configuration=None, split=None):
        asked.append((name, configuration, split))
        return [{"conversations": [{"from": "human", "value": "w1 w2"}, {"from": "gpt", "value": "w3"}], "text": "w4 w5",
                 "messages": [{"role": "user", "content": "w6"}], "instruction": "w7", "output": "w8"}]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    tokens = {}
    for name, split in (("perfectblend", None), ("ultrachat_200k", "train[:5]"), ("wikitext", "test"), ("open_platypus", "train")):
        summary = layerpress.oneshot(model, dataset=name, splits=split, group_size=32, output_dir=tmp_path / name, progress=False)
        tokens[name] = summary.details["tokens"]
    assert asked == [("mlabonne/open-perfectblend", None, "train"), ("HuggingFaceH4/ultrachat_200k", None, "train_sft[:5]"),
                     ("Salesforce/wikitext", "wikitext-2-raw-v1", "test"), ("garage-bAInd/Open-Platypus", None, "train")]
    assert (tokens["perfectblend"], tokens["ultrachat_200k"], tokens["wikitext"]) == (3, 1, 2)


def test_a_tokenizer_without_a_chat_template(monkeypatch, model, tmp_path, caplog):
    """ultrachat_200k gets LLM Compressor's default template."""
    import datasets
    from layerpress.named_datasets import load
    from transformers import AutoTokenizer

    rows = [{"messages": [{"role": "user", "content": "w6"}, {"role": "assistant", "content": "w7"}]}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    tokenizer = AutoTokenizer.from_pretrained(model)
    _, row = load("ultrachat_200k", None, None, lambda: tokenizer)
    assert row(rows[0])["messages"][0] == {"role": "system", "content": ""}
    tokenizer.chat_template, tokenizer.eos_token = None, "</s>"
    with caplog.at_level(logging.WARNING, "layerpress"):
        _, row = load("ultrachat_200k", None, None, lambda: tokenizer)
    assert row(rows[0]) == {"text": "<|system|>\n</s>\n<|user|>\nw6</s>\n<|assistant|>\nw7</s>\n"}
    assert "no chat template" in caplog.text


def test_a_named_dataset_that_cannot_be_loaded(monkeypatch, model, tmp_path):
    """One line, without the token of a quoted request."""
    import datasets

    import layerpress

    def load_dataset(name, configuration=None, split=None):
        raise ConnectionError(f"Couldn't reach '{name}' on the Hub\n(authorization: Bearer hf_abcdefghijklmn)")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(layerpress.DataError) as caught:
        layerpress.oneshot(model, dataset="ultrachat_200k", group_size=32, output_dir=tmp_path / "out", progress=False)
    assert str(caught.value) == (
        "[python.dataset] ultrachat_200k, which is HuggingFaceH4/ultrachat_200k on the hub, split 'train_sft': cannot be loaded (Couldn't "
        "reach 'HuggingFaceH4/ultrachat_200k' on the Hub (authorization: Bearer ***)); check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or "
        "pass a file or the rows")


def test_alpaca_prompts_are_the_peers():
    from layerpress.named_datasets import NAMED

    text = NAMED["open_platypus"].row({"instruction": "add", "input": "1 and 2", "output": "3"})["text"]
    assert text == ("Below is an instruction that describes a task, paired with an input that provides further context. Write a response "
                    "that appropriately completes the request.\n\n### Instruction:\nadd\n\n### Input:\n1 and 2\n\n### Response:\n3")
    text = NAMED["open_platypus"].row({"instruction": "add", "input": "", "output": "3"})["text"]
    assert text == ("Below is an instruction that describes a task. Write a response that appropriately completes the request."
                    "\n\n### Instruction:\nadd\n\n### Response:\n3")


@pytest.mark.parametrize("options, fragment", [
    ({"recipe": "x.yaml"}, "recipe: pass scheme or config"),
    ({"pipeline": "datafree"}, "pipeline: it is always datafree"),
    ({"output_dir": "elsewhere"}, "output_dir: pass save_directory"),
    ({"group_size": 32}, "group_size: pass a QuantizationScheme"),
])
def test_what_model_free_ptq_says_itself(options, fragment, model, tmp_path):
    import layerpress

    with pytest.raises(layerpress.UsageError, match=fragment):
        layerpress.model_free_ptq(model, tmp_path / "out", scheme="W4A16", progress=False, **options)
    assert list(tmp_path.iterdir()) == []


def test_a_collator_that_is_not_called_is_named(caplog, tmp_path):
    """Texts are tokenized by the program, of a model's folder or with a tokenizer that was passed."""
    from layerpress.calibration import Items, Rows

    called = []
    with caplog.at_level(logging.WARNING, logger="layerpress"):
        Rows(Items([{"text": "a"}, {"text": "b"}], {}, None, called.append), {}).write(tmp_path / "rows.jsonl")
    assert called == [] and [record.getMessage()[:31] for record in caplog.records] == ["data_collator is not called: it"]
    Rows(Items([{"input_ids": [1]}], {}, None, lambda rows: {"input_ids": [rows[0]["input_ids"][0] + 1]}), {}).write(tmp_path / "ids.jsonl")
    assert json.loads((tmp_path / "ids.jsonl").read_text()) == {"input_ids": [2]}


def test_rows_without_a_text_are_skipped_as_in_a_file(tmp_path):
    from layerpress.calibration import Items, Rows

    Rows(Items([{"text": None}, {"text": "a"}], {}, None, None), {}).write(tmp_path / "rows.jsonl")
    assert [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()] == [{"text": ""}, {"text": "a"}]


def test_faults_name_the_row_that_was_passed(model, tmp_path):
    import layerpress

    masked = {"dataset": [{"input_ids": [1, 2], "loss_mask": [1]}], "use_loss_mask": True, "group_size": 32, "output_dir": tmp_path / "out",
              "progress": False}
    for call, said in ((lambda: layerpress.evaluate(model, [[1, 2], [999999]]), r"\] the dataset: sample 2 "),
                       (lambda: layerpress.oneshot(model, **masked), r"\] row 1: ")):
        with pytest.raises(layerpress.Error, match=said) as raised:
            call()
        assert "rows.jsonl" not in str(raised.value)
