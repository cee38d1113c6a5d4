"""What oneshot's options do to the result, and what they must not do to it."""

import json

import numpy
import pytest
import torch
from safetensors.numpy import load_file
from support import program, tiny_models
from support.watched_runs import RUN

FIRST_GROUP = [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]


def contents(folder):
    """Without what it says of the run's options, which tests vary."""
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != RUN}


def codes(folder, modules):
    """4-bit codes of modules, one array."""
    tensors = tiny_models.tensors(folder)
    words = [tensors[f"{module}.weight_packed"].numpy().view(numpy.uint8).ravel() for module in modules]
    return numpy.concatenate([part for word in words for part in (word & 15, word >> 4)])


def equal_share(folder, other, modules=FIRST_GROUP):
    return (codes(folder, modules) == codes(other, modules)).mean()


def all_modules(folder):
    return [name.removesuffix(".weight_packed") for name in tiny_models.tensors(folder) if name.endswith("weight_packed")]


def test_second_run_gives_the_same_bytes(model, results, solving):
    first = contents(program.oneshot(model, results / "out", *solving))
    again = contents(program.oneshot(model, results / "out", *solving, "--overwrite"))
    assert again == first
    assert list(results.iterdir()) == [results / "out"]


def test_what_is_written(model, results, rounding):
    """Weights, configuration, recipe, and every companion of the model."""
    out = program.oneshot(model, results / "out", *rounding)
    companions = {file.name for file in model.iterdir()} - {"config.json"}
    assert {file.name for file in out.iterdir()} == companions | {"config.json", "recipe.yaml", "README.md", RUN}
    for name in companions - {"model.safetensors"}:
        assert (out / name).read_bytes() == (model / name).read_bytes()


def test_recipe_in_the_output_repeats_the_run(model, results, solving, samples):
    out = program.oneshot(model, results / "out", *solving)
    again = program.oneshot(model, results / "again", "--recipe", out / "recipe.yaml", "--dataset", samples)
    assert tiny_models.tensors(again).keys() == tiny_models.tensors(out).keys()
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()
    assert (again / "config.json").read_bytes() == (out / "config.json").read_bytes()


def test_shards(model, results, rounding):
    whole = program.oneshot(model, results / "whole", *rounding)
    parts = program.oneshot(model, results / "parts", *rounding, "--max-shard-size", "40KB")
    index = json.loads((parts / "model.safetensors.index.json").read_text())
    shards = sorted(file.name for file in parts.glob("*.safetensors"))
    assert len(shards) > 2 and sorted(set(index["weight_map"].values())) == shards
    tensors = tiny_models.tensors(whole)
    assert tiny_models.tensors(parts).keys() == tensors.keys() == index["weight_map"].keys()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in tiny_models.tensors(parts).items())
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in tensors.values())


@pytest.mark.parametrize("options", [["--batch-tokens", "1"], ["--batch-tokens", "70"], ["--batch-tokens", "100000"],
                                     ["--threads", "1"], ["--threads", "2"]])
def test_result_does_not_depend_on(options, model, results, solving):
    plain = program.oneshot(model, results / "plain", *solving)
    other = program.oneshot(model, results / "other", *solving, *options)
    assert equal_share(plain, other) >= 0.99
    tiny_models.load(other)


def test_order_of_samples_does_not_matter(model, results, samples, tmp_path):
    rows = samples.read_text().splitlines(keepends=True)
    (tmp_path / "reversed.jsonl").write_text("".join(reversed(rows)))
    how = ["--group-size", "32", "--dataset"]
    plain = program.oneshot(model, results / "plain", *how, samples)
    other = program.oneshot(model, results / "other", *how, tmp_path / "reversed.jsonl")
    assert equal_share(plain, other) >= 0.99


def test_pipelines(model, results, solving):
    """Equal where the inputs are equal: basic differs from the first compressed input on, other cuts nowhere."""
    layers = program.oneshot(model, results / "layers", *solving)
    assert equal_share(layers, program.oneshot(model, results / "basic", *solving, "--pipeline", "basic")) >= 0.99
    linears = program.oneshot(model, results / "linears", *solving, "--sequential-targets", "Linear")
    assert equal_share(layers, linears, all_modules(layers)) >= 0.99
    one = program.oneshot(model, results / "one", *solving, "--sequential-targets", "LlamaModel")
    assert equal_share(layers, one, all_modules(layers)) >= 0.99
    down = ["model.layers.2.mlp.down_proj"]
    assert equal_share(layers, results / "basic", down) < 1


def test_data_free_pipelines_agree(model, results, rounding, samples):
    free = program.oneshot(model, results / "free", *rounding)
    with_data = program.oneshot(model, results / "data", *rounding, "--pipeline", "sequential", "--dataset", samples)
    assert contents(free)["model.safetensors"] == contents(with_data)["model.safetensors"]
    assert program.oneshot(model, results / "explicit", *rounding, "--pipeline", "datafree")


def test_summary(model, results, solving, tmp_path):
    summary_file = tmp_path / "summary.json"
    out = program.oneshot(model, results / "out", *solving, "--summary", summary_file, "--threads", "2")
    summary = json.loads(summary_file.read_text())
    assert (summary["samples"], summary["tokens"], summary["threads"]) == (8, 355, 2)
    assert (summary["architecture"], summary["dtype"], summary["device"]) == ("LlamaForCausalLM", "bfloat16", "cpu")
    assert summary["output_bytes"] == (out / "model.safetensors").stat().st_size or summary["output_bytes"] == sum(
        tensor.numel() * tensor.element_size() for tensor in tiny_models.tensors(out).values())
    assert 0 < sum(phase["seconds"] for phase in summary["phases"].values()) <= summary["seconds"]
    assert all(phase["peak_bytes"] <= summary["peak_bytes"] for phase in summary["phases"].values())
    assert {"open", "data", "gram", "solve"} <= summary["phases"].keys()
    assert sorted(entry["module"] for entry in summary["modules"]) == sorted(all_modules(out))
    for entry in summary["modules"]:
        assert 0 < entry["weight_error"] < 0.3
        assert entry["output_error"] > 0 and entry["tokens"] == 355 and entry["fallback"] is None


def test_summary_names_the_fallback(model, results, tmp_path):
    """One token says too little for 64 columns, but dampening makes the matrix definite; no dampening at all does not."""
    recipe = tmp_path / "recipe.json"
    arguments = {"targets": ["Linear"], "ignore": ["lm_head"], "dampening_frac": 0.0, "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}}}}
    recipe.write_text(json.dumps({"s_stage": {"m_modifiers": {"GPTQModifier": arguments}}}))
    data = program.write_samples(tmp_path / "one.jsonl", [[1]])
    outcome = program.run("oneshot", model, "--output", results / "out", "--recipe", recipe, "--dataset", data, "--summary",
                          tmp_path / "summary.json")
    fallbacks = [entry["fallback"] for entry in json.loads((tmp_path / "summary.json").read_text())["modules"]]
    assert any("dampening" in (fallback or "") for fallback in fallbacks)
    assert "with a fallback" in outcome.output and "dampening" in outcome.errors


def compress_with(model, results, name, dataset, *options):
    files = contents(program.oneshot(model, results / name, "--group-size", "32", "--dataset", dataset, *options))
    return {file: content for file, content in files.items() if file != "README.md"}  # which says how to repeat the run


def test_text_messages_and_ids_are_the_same_samples(model, results, tmp_path):
    rows = tiny_models.random_samples([20, 33, 41])
    rows = [[max(token, 1) for token in row] for row in rows]
    text = [" ".join(f"w{token}" for token in row) for row in rows]
    files = {
        "text.jsonl": "".join(json.dumps({"text": each}) + "\n" for each in text),
        "body.jsonl": "".join(json.dumps({"body": each}) + "\n" for each in text),
        "chat.jsonl": "".join(json.dumps({"messages": [{"role": "user", "content": each}]}) + "\n" for each in text),
        "ids.json": json.dumps([{"input_ids": row} for row in rows]),
    }
    wanted = compress_with(model, results, "ids", program.write_samples(tmp_path / "ids.jsonl", rows))
    for name, content in files.items():
        (tmp_path / name).write_text(content)
        options = ["--text-column", "body"] if name == "body.jsonl" else []
        assert compress_with(model, results, name, tmp_path / name, *options) == wanted, name
    prepared = tmp_path / "prepared.safetensors"
    program.run("prepare", model, "--dataset", tmp_path / "text.jsonl", "--output", prepared)
    assert compress_with(model, results, "prepared", prepared) == wanted


@pytest.mark.parametrize("options", [
    ["--num-calibration-samples", "3"], ["--max-seq-length", "16"], ["--dataset-split", "train[2:5]"],
    ["--dataset-split", "train[:4]"], ["--shuffle", "--seed", "3", "--num-calibration-samples", "4"],
    ["--concatenate", "--max-seq-length", "48"],
])
def test_prepared_tokens_are_those_of_the_run(options, model, results, tmp_path):
    """Which samples, how long: the helper and the program's own reader choose alike."""
    rows = [[max(token, 1) for token in row] for row in tiny_models.random_samples([30, 64, 17, 40, 9, 55])]
    ids = program.write_samples(tmp_path / "ids.jsonl", rows)
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": " ".join(f"w{token}" for token in row)}) + "\n" for row in rows))
    prepared = tmp_path / "prepared.safetensors"
    program.run("prepare", model, "--dataset", text, "--output", prepared, *options)
    everything = ["--max-seq-length", "100000"]
    wanted = compress_with(model, results, "prepared", prepared, *everything)
    assert compress_with(model, results, "direct", ids, *options) == wanted
    assert compress_with(model, results, "whole", ids) != wanted


def test_seeds(model, results, samples):
    run = lambda name, *options: compress_with(model, results, name, samples, "--num-calibration-samples", "3", *options)
    first, shuffled = run("first"), run("shuffled", "--shuffle")
    assert run("seed-0", "--shuffle", "--seed", "0") == shuffled
    assert len({each["model.safetensors"] for each in (first, shuffled, run("seed-1", "--shuffle", "--seed", "1"))}) == 3
    assert run("no-shuffle", "--no-shuffle", "--seed", "5") == first


def test_no_module_is_compressed(model, results, tmp_path):
    (tmp_path / "recipe.yaml").write_text("s_stage: {m_modifiers: {SpinQuantModifier: {rotations: [R2]}}}")
    outcome = program.run("oneshot", model, "--output", results / "rotated", "--recipe", tmp_path / "recipe.yaml")
    assert outcome.output.splitlines()[0] == f"{results / 'rotated'}: dense weights, no module compressed"


def test_fewer_samples_than_asked_for(model, results, samples):
    outcome = program.run("oneshot", model, "--output", results / "out", "--group-size", "32", "--dataset", samples)
    assert "only 8 exist" in outcome.errors and "512" in outcome.errors
    quiet = program.run("oneshot", model, "--output", results / "quiet", "--group-size", "32", "--dataset", samples,
                        "--log-level", "error")
    assert quiet.errors == ""


@pytest.mark.parametrize("options, fragment", [
    (["--scheme", "W3A16"], "3-bit"), (["--group-size", "16"], "group size 16"), (["--scheme", "FP8_BLOCK"], "multiples of 128"),
])
def test_warns_when_no_common_kernel_runs_the_result(options, fragment, model, results):
    how = ["--algorithm", "rtn", *options]
    if "--scheme" in options and "W3" in options[1]:
        how += ["--group-size", "32"]
    outcome = program.run("oneshot", model, "--output", results / "out", *how)
    assert fragment in outcome.errors and "vLLM" in outcome.errors


def test_no_warning_without_a_reason(model, results, rounding):
    assert "vLLM" not in program.run("oneshot", model, "--output", results / "out", *rounding).errors


def test_data_without_use_cause_a_warning(model, results, rounding, samples):
    outcome = program.run("oneshot", model, "--output", results / "out", *rounding, "--dataset", samples)
    assert outcome.errors.count("--dataset has no effect") == 1
    outcome = program.run("oneshot", model, "--output", results / "out", *rounding, "--observer", "hessian", "--dataset", samples, "--overwrite")
    assert "--dataset has no effect" not in outcome.errors


def test_dtype(model, results, solving):
    """fp32 arithmetic on bf16 weights: the same container, nearly the same codes."""
    plain = program.oneshot(model, results / "plain", *solving)
    wide = program.oneshot(model, results / "wide", *solving, "--dtype", "float32")
    assert tiny_models.tensors(wide)["model.layers.0.mlp.up_proj.weight_scale"].dtype == torch.bfloat16
    assert equal_share(plain, wide) > 0.9


def test_targets_and_ignore(model, results):
    out = program.oneshot(model, results / "out", "--algorithm", "rtn", "--group-size", "32", "--targets", "re:.*mlp.*",
                          "--ignore", "re:.*layers.1.*", "lm_head")
    assert sorted(all_modules(out)) == sorted(f"model.layers.{layer}.mlp.{name}_proj" for layer in (0, 2)
                                              for name in ("gate", "up", "down"))


def test_compressed_result_can_be_evaluated(model, results, solving, samples):
    out = program.oneshot(model, results / "out", *solving)
    evaluation = program.run("eval", out, "--dataset", samples, "--reference", model).json()
    assert evaluation.keys() == {"perplexity", "reference_perplexity", "tokens", "seconds", "kl_divergence", "kl_median",
                                 "kl_percentile_99", "worst_tokens", "top1_agreement", "layers"}
    assert all(0 < layer["relative_error"] < 1 for layer in evaluation["layers"])
    assert 0 < evaluation["kl_divergence"] < 2 and 0 < evaluation["top1_agreement"] <= 1
    same = program.run("eval", model, "--dataset", samples, "--reference", model).json()
    assert (same["kl_divergence"], same["top1_agreement"], same["tokens"]) == (0, 1, 355 - 8)


def test_padding_in_rows_of_ids(model, results):
    """The program reads these rows itself."""
    ids, rows = [[5, 6, 7, 8]] * 2, results.with_name("rows.jsonl")
    rows.write_text("".join(json.dumps({"input_ids": [*row, 0, 0], "attention_mask": [1] * len(row) + [0, 0]}) + "\n" for row in ids))
    summary = results.with_name("summary.json")
    program.oneshot(model, results / "out", "--scheme", "W8A8", "--dataset", rows, "--summary", summary)
    assert json.loads(summary.read_text())["tokens"] == 8
    rows.write_text('{"input_ids": [1, 2, 3], "attention_mask": [1, 1]}\n')
    program.fails("oneshot", model, "--output", results / "out2", "--scheme", "W8A8", "--dataset", rows,
                  fragments=["line 1: 'attention_mask'", "3 token ids"])


def test_parts_of_a_message_are_joined(model, results):
    rows = results.with_name("rows.jsonl")
    parts = [{"type": "text", "text": "w1 "}, {"type": "text", "text": "w2"}]
    rows.write_text(json.dumps({"messages": [{"role": "user", "content": parts}]}) + "\n")
    program.run("prepare", model, "--dataset", rows, "--output", results / "tokens.safetensors")
    assert load_file(results / "tokens.safetensors")["input_ids"].tolist() == [1, 2]


def test_a_split_of_a_file_and_a_seed_are_named_in_vain(model, samples, results):
    outcome = program.run("oneshot", model, "--output", results / "out", "--scheme", "W8A8", "--dataset", samples, "--dataset-split",
                          "test[:2]", "--seed", "3")
    assert "so the name 'test' of a split chooses nothing" in outcome.errors
    assert "--seed has no effect without --shuffle" in outcome.errors
