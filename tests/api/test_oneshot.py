"""oneshot() of the Python package beside the command: the same bytes, whatever form model, data and recipe have."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from support import block_models, program, tiny_models
from support.program import write_samples

PARTS = ("model.safetensors", "config.json", "recipe.yaml")


def same_parts(folder, other, parts=PARTS):
    for part in parts:
        assert (folder / part).read_bytes() == (other / part).read_bytes(), part


def words(sample):
    return " ".join(f"w{token}" if token else "<unk>" for token in sample)


def rows_of(samples):
    return [{"input_ids": sample} for sample in samples]


def dataset_of(samples):
    from datasets import Dataset

    return Dataset.from_list(rows_of(samples))


def padded(samples):
    """As a tokenizer pads to one length."""
    length = max(map(len, samples))
    return [{"input_ids": [*sample, *[0] * (length - len(sample))],
             "attention_mask": [1] * len(sample) + [0] * (length - len(sample))} for sample in samples]


def table(samples):
    import pandas

    return pandas.DataFrame({"text": [words(sample) for sample in samples] + [None]})


def batches(samples):
    import torch

    return [{name: torch.tensor([row[name] for row in padded(samples)[first:first + 2]]) for name in ("input_ids", "attention_mask")}
            for first in range(0, len(samples), 2)]


FORMS = {
    "dataset": dataset_of,
    "token_ids": lambda samples: iter(samples),
    "texts": lambda samples: [words(sample) for sample in samples],
    "messages": lambda samples: [{"messages": [{"role": "user", "content": words(sample)}]} for sample in samples],
    "padded": padded,
    "with positions": lambda samples: [{**row, "position_ids": list(range(len(row["input_ids"])))} for row in padded(samples)],
    "results of a chat template": lambda samples: [{"input_ids": row} for row in padded(samples)],
    "loader": batches,
    "batches of one": lambda samples: [[sample] for sample in samples],
    "table of pandas": table,
}


def test_model_of_the_hub(model, gptq, samples, by_program, tmp_path, monkeypatch, loaded):
    from support.local_hub import LocalHub

    import layerpress

    hub = LocalHub()
    hub.add("org/name", model)
    for name, value in hub.environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    arguments = {"dataset": samples, "recipe": gptq, "output_dir": tmp_path / "out", "progress": False}
    with pytest.raises(layerpress.CheckpointError, match="add download=True"):
        layerpress.oneshot("org/name", **arguments)
    summary = layerpress.oneshot("org/name", download=True, push="me/result", **arguments)
    assert summary.uploaded == hub.address + "/me/result"
    assert hub.models["me/result"]["model.safetensors"] == (by_program / "model.safetensors").read_bytes()
    with pytest.raises(layerpress.UsageError, match="push: a model in memory is uploaded after it is saved"):
        layerpress.oneshot(loaded, push="me/result", **arguments)
    hub.close()


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data(form, model, samples, by_program, gptq, tmp_path):
    import layerpress

    summary = layerpress.oneshot(model=str(model), dataset=FORMS[form](samples), recipe=[gptq], output_dir=tmp_path / "out",
                                 progress=False)
    same_parts(tmp_path / "out", by_program)
    assert summary.modules == 21 and summary["details"]["tokens"] == sum(map(len, samples))


def test_a_model_in_memory(model, loaded, samples, by_program, gptq, tmp_path):
    """Read where it is; afterwards it has the values of the result, and saves the result."""
    import torch
    from transformers import AutoModelForCausalLM

    from layerpress import oneshot

    places = {name: tensor.data_ptr() for name, tensor in loaded.state_dict().items()}
    compiled = torch.compile(loaded)
    same = oneshot(model=compiled, dataset=dataset_of(samples), recipe=gptq, max_seq_length=2048, num_calibration_samples=512,
                   progress=False)
    assert same is compiled and loaded.compression.modules == 21
    assert places == {name: tensor.data_ptr() for name, tensor in loaded.state_dict().items()}
    loaded.save_pretrained(tmp_path / "saved", save_compressed=True)
    assert 'layerpress.oneshot(model, output_dir="OUT"' in (tmp_path / "saved" / "README.md").read_text()
    same_parts(tmp_path / "saved", by_program, ("model.safetensors", "recipe.yaml"))
    result = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype="auto").eval()
    tokens = torch.tensor([samples[0]])
    with torch.no_grad():
        assert torch.allclose(loaded(tokens).logits, result(tokens).logits, atol=1e-2, rtol=1e-2)
    loaded.save_pretrained(tmp_path / "dense", save_compressed=False)
    dense = AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype="auto").eval()
    with torch.no_grad():
        assert torch.equal(dense(tokens).logits, loaded(tokens).logits)


def test_texts_for_a_model_in_memory(loaded, model, samples, by_program, gptq, tmp_path):
    """Tokenized with the model's own tokenizer, or a given one."""
    from transformers import AutoTokenizer

    from layerpress import oneshot

    oneshot(model=loaded, dataset=[words(sample) for sample in samples], recipe=gptq, output_dir=tmp_path / "found",
            tokenizer=AutoTokenizer.from_pretrained(model), progress=False)
    same_parts(tmp_path / "found", by_program, ("model.safetensors",))
    assert (tmp_path / "found" / "tokenizer.json").exists()


@pytest.mark.parametrize("scheme", ["W4A16", "FP8_DYNAMIC"])
def test_a_result_that_was_decompressed_in_memory(scheme, model, samples, gptq, tmp_path):
    """compressed-tensors leaves scales and shapes beside the values."""
    from layerpress.modifiers import QuantizationModifier
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    import layerpress

    recipe = gptq if scheme == "W4A16" else QuantizationModifier(scheme=scheme, ignore=["lm_head"])
    layerpress.oneshot(model, dataset=rows_of(samples), recipe=recipe, output_dir=tmp_path / "first", progress=False)
    decoded = AutoModelForCausalLM.from_pretrained(tmp_path / "first", quantization_config=CompressedTensorsConfig(run_compressed=False))
    assert "model.layers.0.mlp.up_proj.weight_scale" in decoded.state_dict()
    layerpress.oneshot(decoded, dataset=rows_of(samples), recipe=gptq, output_dir=tmp_path / "second", progress=False)
    assert layerpress.verify(tmp_path / "second")["faults"] == []
    assert "model.layers.0.mlp.up_proj.weight_packed" in tiny_models.tensors(tmp_path / "second")


def test_a_tokenizer_beside_the_model(model, loaded, samples, gptq, tmp_path):
    """Its settings hold, and the result has it; the model's own comes along without being asked for."""
    from transformers import AutoTokenizer

    import layerpress
    from layerpress import UsageError

    given = AutoTokenizer.from_pretrained(model)
    given.truncation_side, given.chat_template = "left", "{{ messages[0].content }} w3"
    given.add_tokens(["layerpress"])
    data = {"dataset": [words(samples[1])], "max_seq_length": 16, "recipe": gptq, "progress": False}
    layerpress.oneshot(model, tokenizer=given, output_dir=tmp_path / "out", **data)
    own = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert own.chat_template == given.chat_template and len(own) == len(given)
    layerpress.oneshot(loaded, tokenizer=given, output_dir=tmp_path / "left", **data)
    layerpress.oneshot(model, output_dir=tmp_path / "ids", **{**data, "dataset": [{"input_ids": samples[1][-16:]}]})
    same_parts(tmp_path / "left", tmp_path / "ids", ("model.safetensors",))
    same_parts(tmp_path / "ids", model, ("tokenizer.json", "chat_template.jinja"))

    class Own(type(given)):
        def __call__(self, *arguments, **options):
            return super().__call__(*arguments, **options)

    given.__class__ = Own
    with pytest.raises(UsageError, match="Own has methods of its own"):
        layerpress.oneshot(loaded, tokenizer=given, **data)


def test_tokenized_rows_for_a_model_in_memory(model, loaded, samples, gptq, tmp_path):
    """The result has the model's tokenizer, as that of the folder has."""
    import layerpress

    layerpress.oneshot(loaded, dataset=rows_of(samples), recipe=gptq, output_dir=tmp_path / "out", progress=False)
    assert (tmp_path / "out" / "tokenizer.json").exists() and (tmp_path / "out" / "chat_template.jinja").exists()


def test_data_keywords(model, samples, gptq, tmp_path, caplog):
    """What says how data is read counts, or is refused by name."""
    import layerpress
    from layerpress import UsageError

    folder = tmp_path / "data"
    folder.mkdir()
    rows = write_samples(folder / "rows.jsonl", samples)
    function = tmp_path / "functions.py"
    function.write_text("def shorter(row):\n    return {'input_ids': row['input_ids'][:9]}\n")
    wanted = {"recipe": gptq, "progress": False}
    by_rows = layerpress.oneshot(model, dataset=rows, output_dir=tmp_path / "rows", **wanted)
    by_path = layerpress.oneshot(model, dataset="json", dataset_path=rows, output_dir=tmp_path / "path", **wanted)
    assert by_path["details"]["tokens"] == by_rows["details"]["tokens"]
    same_parts(tmp_path / "path", tmp_path / "rows", ("model.safetensors",))
    with pytest.raises(UsageError, match="dataset_path: the data is given twice"):
        layerpress.oneshot(model, dataset=str(rows), dataset_path=str(folder), **wanted)
    shorter = layerpress.oneshot(model, dataset=rows_of(samples), preprocessing_func=f"{function}:shorter", output_dir=tmp_path / "short", **wanted)
    assert shorter["details"]["tokens"] == 9 * len(samples)
    for named, message in (("shorter", "neither a function nor FILE.py:FUNCTION"), (f"{function}:longer", "no function longer")):
        with pytest.raises(UsageError, match=message):
            layerpress.oneshot(model, dataset=rows_of(samples), preprocessing_func=named, **wanted)
    with pytest.raises(UsageError, match="data_collator: 'truncatoin' is not known"):
        layerpress.oneshot(model, dataset=rows, data_collator="truncatoin", **wanted)
    with caplog.at_level("WARNING", "layerpress"):
        layerpress.oneshot(model, dataset=rows, data_collator=lambda rows: rows, output_dir=tmp_path / "collated", **wanted)
    assert "data_collator is not called" in caplog.text


def test_rows_without_an_end(model, samples, gptq, tmp_path):
    import itertools

    import layerpress

    summary = layerpress.oneshot(model, dataset=({"input_ids": sample} for sample in itertools.cycle(samples)), recipe=gptq,
                                 num_calibration_samples=4, output_dir=tmp_path / "out", progress=False)
    assert summary["details"]["samples"] == 4


@pytest.mark.parametrize("recipe", ["rotated", "rotated and quantized", "quantized head", "pruned head", "quantized embedding"])
def test_a_tied_head_in_memory(recipe, samples, tmp_path):
    """The model is untied where the result of its folder is."""
    import torch
    from layerpress.modifiers import MagnitudePruningModifier, QuantizationModifier, SpinQuantModifier
    from support import tiny_models
    from transformers import AutoModelForCausalLM

    import layerpress

    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    modifiers = {"rotated": [SpinQuantModifier(rotations=["R1"])],
                 "rotated and quantized": [SpinQuantModifier(rotations=["R1", "R2"]),
                                           QuantizationModifier(scheme="FP8_DYNAMIC", ignore=["lm_head"])],
                 "quantized head": [QuantizationModifier(scheme="FP8_DYNAMIC")],
                 "pruned head": [MagnitudePruningModifier(final_sparsity=0.5, targets=["Linear"])],
                 "quantized embedding": [QuantizationModifier(config_groups={"g": {"targets": ["Embedding"], "weights": weights}})]}[recipe]
    folder = tiny_models.save(tmp_path / "tied", dtype=torch.float32, tie_word_embeddings=True)
    layerpress.oneshot(folder, recipe=modifiers, output_dir=tmp_path / "of_folder", progress=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    layerpress.oneshot(model, recipe=modifiers, progress=False)
    model.save_pretrained(tmp_path / "of_memory")
    same_parts(tmp_path / "of_memory", tmp_path / "of_folder", ("model.safetensors", "config.json"))
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    model.save_pretrained(tmp_path / "dense", save_compressed=False)
    tokens = torch.tensor([samples[0]])

    def logits(name):
        return AutoModelForCausalLM.from_pretrained(tmp_path / name, dtype="auto").eval()(tokens).logits

    with torch.no_grad():
        assert torch.equal(logits("dense"), model.eval()(tokens).logits)
        if "quantized" not in recipe:  # else inputs of the result are rounded, or transformers cannot read the embedding
            assert torch.equal(logits("dense"), logits("of_memory"))


@pytest.mark.parametrize("says_tied", [True, False])
def test_a_config_in_memory_that_is_wrong_about_the_head(says_tied, samples, tmp_path):
    """What the parameters are counts: a head of its own under a config that ties it, and a shared one under a config that does not."""
    import torch
    from layerpress.modifiers import QuantizationModifier
    from support import tiny_models
    from transformers import AutoModelForCausalLM

    import layerpress

    model = AutoModelForCausalLM.from_pretrained(tiny_models.save(tmp_path / "tied", dtype=torch.float32, tie_word_embeddings=True), dtype="auto")
    if says_tied:
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().flip(0).contiguous())
    else:
        model.config.tie_word_embeddings = False
    recipe = QuantizationModifier(scheme="FP8_DYNAMIC", targets=["re:.*o_proj$"])
    ids = torch.tensor([samples[0]])
    with torch.no_grad():
        wanted = model(ids).logits
        layerpress.oneshot(model, recipe=recipe, output_dir=tmp_path / "out", progress=False)
        reloaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
        for found in (model(ids).logits, reloaded(ids).logits):
            assert (found - wanted).norm() < 0.1 * wanted.norm()


def test_slices_of_a_dataset(model, samples, gptq, tmp_path):
    """As the datasets package takes them, of rows that are in memory."""
    from datasets import Dataset, DatasetDict

    import layerpress

    rows = Dataset.from_list([{"input_ids": sample} for sample in samples])
    def weights(dataset, split):
        out = tmp_path / f"{split}-{type(dataset).__name__}"
        layerpress.oneshot(model, dataset=dataset, splits=split, recipe=gptq, output_dir=out, progress=False)
        return (out / "model.safetensors").read_bytes()

    half = weights(samples[:3], "train")
    assert weights(rows, "train[:50%]") == half == weights(DatasetDict({"train": rows}), "train[0:3]") == weights(list(samples), "train[:-3]")
    assert weights(rows, "train") != half


def test_code_beside_the_graph_is_told(loaded, samples, gptq, tmp_path, caplog):
    import layerpress

    def told(call, **options):
        call(loaded, dataset=samples, recipe=gptq, **options)
        return [record.message for record in caplog.records if "have no effect" in record.message]

    loaded.gradient_checkpointing_enable()
    loaded.enable_input_require_grads()  # hooks of transformers
    assert told(layerpress.plan) == []
    loaded.model.layers[1].mlp.up_proj.register_forward_hook(lambda module, inputs, output: output * 2)
    said = told(layerpress.oneshot, output_dir=tmp_path / "out", progress=False)
    assert [message.split(":")[0] for message in said] == ["model.layers.1.mlp.up_proj"]


def test_a_fork_after_a_run_is_refused(model, samples, gptq, tmp_path):
    """Its threads did not come along, and it would wait for them."""
    import multiprocessing

    import layerpress

    layerpress.inspect(model)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with pytest.raises(layerpress.UsageError, match="forked.*spawn"):
            pool.apply_async(layerpress.inspect, (model,)).get(timeout=60)


def test_a_result_that_the_model_cannot_take_is_kept(loaded, gptq, samples, tmp_path, monkeypatch):
    """The error names its folder."""
    import gc

    import layerpress
    from layerpress import _native

    def refusing(native, output):
        raise layerpress.CheckpointError(f"[memory.load] {output}: does not fit")

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(_native, "load_result", refusing)
    with pytest.raises(layerpress.CheckpointError) as caught:
        layerpress.oneshot(loaded, dataset=rows_of(samples), recipe=gptq, progress=False)
    del loaded
    gc.collect()
    assert (Path(str(caught.value).split()[1].rstrip(":")) / "model.safetensors").is_file()


def test_texts_for_a_model_from_nowhere(samples, monkeypatch, tmp_path):
    """The hub is not asked for something that has the name of the model's class."""
    import transformers

    import layerpress

    for kind in (transformers.AutoTokenizer, transformers.AutoProcessor):
        monkeypatch.setattr(kind, "from_pretrained", lambda *_, **__: pytest.fail("a tokenizer is looked for"))
    made = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=tiny_models.VOCABULARY, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(layerpress.UsageError, match="LlamaForCausalLM: .*pass tokenizer= or tokenized data"):
        layerpress.oneshot(model=made, dataset=[words(sample) for sample in samples], scheme="W8A8", output_dir=tmp_path / "out",
                           progress=False)


@pytest.mark.parametrize("family, settings", [
    ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16}),
    ("Mixtral", {"num_local_experts": 4}),
])
def test_a_mixture_of_experts_in_memory(family, settings, samples, tmp_path):
    """Experts that transformers holds as one tensor per layer, and under other names than checkpoints have."""
    from layerpress.modifiers import QuantizationModifier
    from support import tiny_models
    from transformers import AutoModelForCausalLM

    import layerpress

    folder = tiny_models.save(tmp_path / "experts", family=family, num_experts_per_tok=2, **settings)
    recipe = QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head", "re:.*gate$"])
    layerpress.oneshot(model=folder, recipe=recipe, output_dir=tmp_path / "of_folder", progress=False)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    layerpress.oneshot(model=model, recipe=recipe, output_dir=tmp_path / "of_memory", progress=False)
    same_parts(tmp_path / "of_memory", tmp_path / "of_folder", ("model.safetensors",))
    changed = {name.rsplit(".", 1)[-1] for name, tensor in model.state_dict().items() if not tensor.equal(before[name])}
    assert {"gate_up_proj", "down_proj"} <= changed


@pytest.mark.parametrize("family, settings", [
    ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 32, "head_dim": 16}),
    ("Mixtral", {"num_local_experts": 4}),
])
def test_experts_of_a_model_in_memory_are_removed(family, settings, samples, tmp_path):
    """The model then is the smaller one: its modules, its config and its logits are the result's."""
    import torch
    from layerpress.modifiers import REAPPruningModifier
    from support import tiny_models
    from transformers import AutoModelForCausalLM

    import layerpress

    folder = tiny_models.save(tmp_path / "experts", family=family, num_experts_per_tok=2, **settings)
    recipe = REAPPruningModifier(sparsity=0.5)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    head = model.lm_head.weight.data_ptr()
    calibration = {"dataset": rows_of(samples), "max_seq_length": 16, "num_calibration_samples": 4, "progress": False}
    layerpress.oneshot(model=model, recipe=recipe, output_dir=tmp_path / "of_memory", **calibration)
    layerpress.oneshot(model=folder, recipe=recipe, output_dir=tmp_path / "of_folder", **calibration)
    same_parts(tmp_path / "of_memory", tmp_path / "of_folder", ("model.safetensors",))
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "of_folder", dtype="auto")
    tokens = torch.arange(12)[None]
    with torch.no_grad():
        difference = (model(tokens).logits - expected(tokens).logits).abs().max() / expected(tokens).logits.abs().max()
    assert difference < 1e-6
    assert getattr(model.config, next(iter(settings))) == 2
    assert model.lm_head.weight.data_ptr() == head, "what does not shrink stays where it is"
    assert model.generate(tokens, max_new_tokens=3, do_sample=False).shape == (1, 15)


def test_experts_in_memory_are_removed_and_quantized(samples, tmp_path):
    from layerpress.modifiers import QuantizationModifier, REAPPruningModifier
    from safetensors.torch import load_file
    from support import tiny_models
    from transformers import AutoModelForCausalLM

    import layerpress

    folder = tiny_models.save(tmp_path / "experts", family="Qwen3Moe", num_experts_per_tok=2, num_experts=4, moe_intermediate_size=32, head_dim=16)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    with pytest.raises(layerpress.RecipeError, match="a model in memory has one number of experts"):
        layerpress.oneshot(model=model, dataset=rows_of(samples), recipe=REAPPruningModifier(sparsity=0.5, uniform=False),
                           output_dir=tmp_path / "out", progress=False)
    recipe = [REAPPruningModifier(sparsity=0.5), QuantizationModifier(targets="Linear", scheme="FP8_DYNAMIC", ignore=["lm_head", "re:.*gate$"])]
    layerpress.oneshot(model=model, dataset=rows_of(samples), recipe=recipe, output_dir=tmp_path / "out", max_seq_length=16,
                       num_calibration_samples=4, progress=False)
    stored = load_file(tmp_path / "out" / "model.safetensors")
    for layer in range(len(model.model.layers)):
        experts = model.model.layers[layer].mlp.experts
        for expert in range(2):
            name = f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"
            value = stored[name].float() * stored[f"{name}_scale"].float()
            assert (experts.down_proj[expert].float() - value).abs().max() <= 0.01 * value.abs().max()
    assert model.model.layers[0].mlp.gate.weight.shape[0] == 2


def test_experts_as_sequential_targets(samples, gptq, tmp_path):
    """By the class that LLM Compressor gives them, whatever the model's own."""
    from support import tiny_models

    import layerpress

    folder = tiny_models.save(tmp_path / "experts", family="Qwen3Moe", num_experts_per_tok=2, num_experts=4, moe_intermediate_size=32,
                              head_dim=16, num_hidden_layers=2)
    for name, target in (("class", "ExpertMLP"), ("pattern", r"re:.*experts\.\d+$")):
        cut = {"sequential_targets": [target], "sequential_targets_per_subgraph": 2}
        parts = [part["name"] for part in layerpress.inspect(folder, **cut)["subgraphs"]]
        assert sum(".experts." in part for part in parts) == 4, parts
        layerpress.oneshot(folder, dataset=rows_of(samples), recipe=gptq, output_dir=tmp_path / name, progress=False, **cut)
    same_parts(tmp_path / "class", tmp_path / "pattern", ("model.safetensors",))


def test_recipes_as_text_and_file(model, samples, by_program, tmp_path):
    import layerpress

    text = (by_program / "recipe.yaml").read_text()
    for name, recipe in (("text", text), ("file", by_program / "recipe.yaml")):
        layerpress.oneshot(model=model, dataset=rows_of(samples), recipe=recipe, output_dir=tmp_path / name, progress=False)
        same_parts(tmp_path / name, by_program)


def test_ctrl_c_and_resume(model, samples, by_program, gptq, tmp_path, monkeypatch):
    """An interrupted call raises what is both a layerpress.Error and a KeyboardInterrupt; the same call with resume=True continues."""
    import layerpress
    from layerpress import progress

    step = progress.Events.step

    def interrupting(self, done, total, name):
        step(self, done, total, name)
        if done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    # What runs in the background begins with a signal that is ignored.
    handler = signal.default_int_handler
    before = signal.signal(signal.SIGINT, handler)
    arguments = {"model": model, "dataset": rows_of(samples), "recipe": gptq, "output_dir": tmp_path / "out", "progress": False}
    with monkeypatch.context() as patched:
        patched.setattr(progress.Events, "step", interrupting)
        with pytest.raises(KeyboardInterrupt, match="continue with resume=True") as caught:
            layerpress.oneshot(**arguments)
    assert isinstance(caught.value, layerpress.InterruptedError) and isinstance(caught.value, layerpress.Error)
    assert signal.getsignal(signal.SIGINT) is handler and not (tmp_path / "out").exists()
    signal.signal(signal.SIGINT, before)
    summary = layerpress.oneshot(**arguments, resume=True)
    assert summary.details["resumed_subgraphs"] >= 1
    same_parts(tmp_path / "out", by_program)


def test_other_threads_run_meanwhile(model, samples, gptq, tmp_path):
    import layerpress

    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.monotonic())
            time.sleep(0.002)

    thread = threading.Thread(target=tick)
    thread.start()
    before = time.monotonic()
    layerpress.oneshot(model=model, dataset=rows_of(samples), recipe=gptq, output_dir=tmp_path / "out", progress=False)
    after = time.monotonic()
    done.set()
    thread.join()
    inside = [tick for tick in ticks if before < tick < after]
    assert max(b - a for a, b in zip(inside, inside[1:])) < 0.5 * (after - before), "the lock was held"


def test_runs_leave_no_memory_behind(model, samples, gptq, tmp_path):
    import torch

    import layerpress

    def anonymous_bytes():
        with open("/proc/self/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024

    threads = torch.get_num_threads()
    sizes = []
    for number in range(4):
        layerpress.oneshot(model=model, dataset=rows_of(samples), recipe=gptq, output_dir=tmp_path / str(number), progress=False,
                           threads=1)
        sizes.append(anonymous_bytes())
    assert sizes[3] - sizes[1] < 4 << 20, sizes
    assert torch.get_num_threads() == threads


def test_shared_data_of_the_command(model, samples, by_program, gptq, tmp_path):
    """A file's path stays a path."""
    import layerpress

    rows = write_samples(tmp_path / "rows.jsonl", samples)
    prepared = layerpress.prepare(model, rows, tmp_path / "tokens.safetensors")
    assert prepared == {"samples": len(samples), "tokens": sum(map(len, samples))}
    layerpress.oneshot(model=model, dataset=tmp_path / "tokens.safetensors", recipe=gptq, output_dir=tmp_path / "out", progress=False)
    same_parts(tmp_path / "out", by_program)


def test_gguf(tmp_path):
    """The modifier names a mixture, whose types the program chooses by the model."""
    import gguf
    import transformers
    from layerpress.modifiers.gptq import GPTQModifier

    import layerpress

    folder = block_models.save(tmp_path / "model", "Llama")
    samples = tiny_models.random_samples([32] * 8, vocabulary=block_models.SIZES["vocab_size"], seed=3)
    (tmp_path / "recipe.yaml").write_text("s_stage: {m_modifiers: {GPTQModifier: {scheme: Q4_K_M}}}")
    made = program.oneshot(folder, tmp_path / "command.gguf", "--recipe", tmp_path / "recipe.yaml", "--dataset",
                           write_samples(tmp_path / "rows.jsonl", samples))
    recipe = GPTQModifier(targets="Linear", scheme="Q4_K_M")
    layerpress.oneshot(model=folder, recipe=recipe, dataset=dataset_of(samples), output_dir=tmp_path / "python.gguf")
    mine, theirs = (gguf.GGUFReader(path).tensors for path in (tmp_path / "python.gguf", made))
    assert [(tensor.name, tensor.data.tobytes()) for tensor in mine] == [(tensor.name, tensor.data.tobytes()) for tensor in theirs]
    with pytest.raises(layerpress.RecipeError, match="Q4_K_M chooses a type for every tensor; leave 'targets' out"):
        GPTQModifier(targets="re:.*q_proj", scheme="Q4_K_M")
    with pytest.raises(layerpress.RecipeError, match="unknown argument 'group_size'"):
        GPTQModifier(scheme="Q4_K_M", group_size=64)
    in_memory = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(layerpress.UsageError, match="a model in memory cannot become a GGUF"):
        layerpress.oneshot(model=in_memory, recipe=recipe, dataset=dataset_of(samples), output_dir=tmp_path / "memory.gguf")


@pytest.mark.parametrize("change, told", [
    (lambda model: setattr(model.model.layers[0].mlp, "act_fn", __import__("torch").nn.GELU()), "model.layers.0.mlp.act_fn"),
    (lambda model: setattr(model.model.layers[1], "input_layernorm", __import__("torch").nn.LayerNorm(model.config.hidden_size, bias=False)),
     "model.layers.1.input_layernorm"),
    (lambda model: setattr(model.config, "rms_norm_eps", 1e-2), "model.layers.0.input_layernorm and"),
    (lambda model: setattr(model.model.norm, "variance_epsilon", 1e-2), "model.norm"),
], ids=["activation", "norm", "config", "epsilon"])
def test_modules_that_the_config_does_not_describe_are_told(change, told, loaded, samples, gptq, tmp_path, caplog):
    from layerpress import oneshot

    change(loaded)
    oneshot(loaded, dataset=samples, recipe=gptq, output_dir=tmp_path / "out", progress=False)
    said = [record.message for record in caplog.records if "have no effect" in record.message]
    assert len(said) == 1 and said[0].startswith(told), said


def test_a_second_call_keeps_what_the_first_has_compressed(loaded, samples, tmp_path, caplog):
    import torch
    from layerpress.modifiers import GPTQModifier, QuantizationModifier
    from safetensors.torch import load_file

    from layerpress import UsageError, oneshot

    oneshot(loaded, recipe=QuantizationModifier(scheme="FP8_DYNAMIC", targets=["re:.*mlp.*"]), progress=False)
    loaded.save_pretrained(tmp_path / "first")
    attention = GPTQModifier(config_groups={"group_0": {"targets": ["re:.*self_attn.*_proj"], "weights": {"num_bits": 8, "group_size": 32,
                                                                                                           "strategy": "group"}}})
    oneshot(loaded, dataset=samples, recipe=attention, output_dir=tmp_path / "out", progress=False)
    loaded.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())["quantization_config"]
    assert {group["format"] for group in config["config_groups"].values()} == {"float-quantized", "pack-quantized"}
    first, both = (load_file(tmp_path / name / "model.safetensors") for name in ("first", "saved"))
    name = "model.layers.1.mlp.down_proj.weight"
    assert both[name].dtype == torch.float8_e4m3fn and both[name].view(torch.uint8).equal(first[name].view(torch.uint8))
    assert "model.layers.1.self_attn.q_proj.weight_packed" in both
    values = both[name].bfloat16() * both[f"{name}_scale"].bfloat16()
    assert values.equal(loaded.state_dict()[name])
    with pytest.raises(UsageError, match="from which this call goes on; choose another folder"):
        oneshot(loaded, recipe=QuantizationModifier(scheme="W8A8"), output_dir=tmp_path / "out", overwrite=True, progress=False)
    with torch.no_grad():
        loaded.model.norm.weight.mul_(1.5)
    caplog.clear()
    oneshot(loaded, recipe=QuantizationModifier(scheme="W8A8", targets=["re:.*[qkv]_proj"]), output_dir=tmp_path / "third", progress=False)
    assert any("was changed after it was compressed" in record.message for record in caplog.records)
    third = load_file(tmp_path / "third" / "model.safetensors")
    assert third[name].dtype == torch.bfloat16 and third["model.norm.weight"].equal(loaded.model.norm.weight)
