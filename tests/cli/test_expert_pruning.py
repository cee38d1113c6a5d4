"""Removing experts: the choice, the checkpoint that is left, and quantizers behind it."""

import json

import numpy
import pytest
import torch
from support import any_model, program, tiny_models
from support.pruned_experts import perplexity_with, plain_choice, plain_choice_over_layers, recipe, sliced, total_experts
from support.selection import nightly_but
from support.watched_runs import contents, differing, killed

SMALL = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
BY_HAND = {
    "qwen3_moe": ("Qwen3Moe", {**SMALL, "head_dim": 16, "norm_topk_prob": True}),
    "qwen2_moe": ("Qwen2Moe", {**SMALL, "shared_expert_intermediate_size": 80}),
    "mixtral": ("Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2}),
    "olmoe": ("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "deepseek_v2": ("DeepseekV2", {"n_group": 1, "topk_group": 1}),
    "deepseek_v3 groups": ("DeepseekV3", {"n_routed_experts": 16, "n_group": 4, "topk_group": 3}),
}
IMPORTED = ("gpt_oss", "granitemoe", "ernie4_5_moe", "glm4_moe", "qwen3_next", "afmoe", "cohere2_moe", "dots1", "exaone_moe", "flex_olmo",
            "granitemoehybrid", "hunyuan_v1_moe", "jamba", "lfm2_moe", "minimax_m2", "nemotron_h", "phimoe", "qwen3_5_moe_text",
            "hy_v3", "llama4_text", "minimax", "mimo_v2_flash", "kimi_linear", "glm4_moe_lite", "deepseek_v32")
EXACT = ["--dtype", "fp32"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    family, settings = BY_HAND["qwen3_moe"]
    return tiny_models.save(tmp_path_factory.mktemp("source") / "model", family, num_hidden_layers=3, **settings)


def pruned(source, out, samples, folder, *modifiers, options=(), **arguments):
    """Removes half of the experts; returns the output folder and what the report says of those that stay."""
    report = folder / "kept.json"
    program.oneshot(source, out, "--recipe", recipe(folder, *modifiers, report_path=str(report), **arguments), "--dataset", samples,
                    *EXACT, *options)
    return out, json.loads(report.read_text())


def check(source, out, kept, folder, logits):
    """The output is the original's slices, and computes what they compute."""
    wanted = sliced(source, folder / "sliced", kept)
    assert kept and all(2 * len(experts) == total_experts(source) for experts in kept.values())
    expected, found = tiny_models.tensors(wanted), tiny_models.tensors(out)
    assert found.keys() == expected.keys()
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    config = json.loads((out / "config.json").read_text())
    assert config == json.loads((wanted / "config.json").read_text())
    samples = tiny_models.random_samples([24, 40])
    assert all(numpy.array_equal(ours, theirs) for ours, theirs in zip(logits(out, samples), logits(wanted, samples)))


@pytest.mark.parametrize("family", nightly_but(BY_HAND, "qwen3_moe", "deepseek_v3 groups"))
def test_families_by_hand(family, samples, results, tmp_path):
    name, settings = BY_HAND[family]
    source = tiny_models.save(tmp_path / "model", name, **settings)
    out, kept = pruned(source, results / "out", samples, tmp_path)
    check(source, out, kept, tmp_path, tiny_models.logits)
    for experts in kept.values():
        if "groups" in family:
            assert [sum(expert // 4 == group for expert in experts) for group in range(4)] == [2, 2, 2, 2]


@pytest.mark.parametrize("family", nightly_but(IMPORTED))
def test_imported_families(family, samples, results, tmp_path):
    source = any_model.save(tmp_path / "model", family)
    out, kept = pruned(source, results / "out", samples, tmp_path)
    check(source, out, kept, tmp_path, any_model.logits)


@pytest.mark.nightly
def test_experts_that_are_no_nodes(samples, tmp_path):
    """JetMoE's, whose attention has experts, too."""
    source = any_model.save(tmp_path / "model", "jetmoe")
    program.fails("oneshot", source, "--output", tmp_path / "out", "--recipe", recipe(tmp_path), "--dataset", samples,
                  fragments=["is not a node of the model's graph", "its experts cannot be removed"])


@pytest.mark.nightly
def test_gates_with_rows_for_shared_experts(samples, tmp_path):
    """Inkling's, whose rows are not the experts' alone: refused before anything is measured."""
    source = any_model.save(tmp_path / "model", "inkling_text")
    program.fails("oneshot", source, "--output", tmp_path / "out", "--recipe", recipe(tmp_path), "--dataset", samples,
                  fragments=["REAPPruningModifier: keeps 4 of 8 experts", "gate.weight", "the architecture does not take the rest"])


def test_choice(source, samples, results, tmp_path):
    """That of a version in Python, whose double precision tells experts apart."""
    _, kept = pruned(source, results / "out", samples, tmp_path)
    rows = [json.loads(line)["input_ids"] for line in samples.read_text().splitlines()]
    assert kept == plain_choice(source, rows, dropped=4)
    assert len({tuple(experts) for experts in kept.values()}) == 3


def test_what_the_result_says_of_itself(source, samples, results, tmp_path):
    summary, page = tmp_path / "summary.json", tmp_path / "page.html"
    out, _ = pruned(source, results / "out", samples, tmp_path, options=["--summary", summary, "--report", page])
    said = json.loads(summary.read_text())
    lengths = [len(json.loads(line)["input_ids"]) for line in samples.read_text().splitlines()]
    assert (said["samples"], said["tokens"], said["scheme"]) == (len(lengths), sum(lengths), "dense weights")
    text = page.read_text()
    assert "<p>Dense weights. Layerpress" in text and "no calibration data" not in text
    card = (out / "README.md").read_text()
    assert "with dense weights" in card and "compressed-tensors" not in card and f"{sum(lengths)} tokens" in card


def test_different_numbers(source, samples, results, tmp_path):
    """One share for all layers together. transformers' modules compute what such a result does, although it cannot load it."""
    rows = [json.loads(line)["input_ids"] for line in samples.read_text().splitlines()]
    out, kept = pruned(source, results / "out", samples, tmp_path, uniform=False)
    assert kept == plain_choice_over_layers(source, rows, dropped=12, least=2)
    counts = [len(own) for own in kept.values()]
    assert len(set(counts)) > 1 and sum(counts) == 12
    config = json.loads((out / "config.json").read_text())
    expected = {"method": "prune", "num_experts": counts}
    assert config["moe_sparsity_config"] == expected and total_experts(out) == max(counts)

    def perplexity(folder):
        return program.run("eval", folder, "--dataset", samples, *EXACT).json()["perplexity"]

    wanted = perplexity_with(source, kept, rows)
    assert perplexity(out) == pytest.approx(wanted, rel=1e-5)
    assert program.run("verify", out, "--source", source).code == 0
    # Quantized in the same command, and afterwards: the same bytes.
    modifier = ("GPTQModifier", {"scheme": "W8A8", "ignore": ["lm_head"]})
    (tmp_path / "quantized").mkdir()
    once, _ = pruned(source, results / "once", samples, tmp_path / "quantized", modifier, uniform=False)
    again = tmp_path / "quantizer.yaml"
    again.write_text(json.dumps({"a_stage": {"m_modifiers": {modifier[0]: modifier[1]}}}))
    twice = program.oneshot(out, results / "twice", "--recipe", again, "--dataset", samples, *EXACT)
    for folder in (once, twice):
        config = json.loads((folder / "config.json").read_text())
        assert config["moe_sparsity_config"] == config["quantization_config"]["moe_sparsity_config"] == expected
        assert program.run("verify", folder, "--source", source if folder == once else out).code == 0
    found = tiny_models.tensors(twice)
    assert [name for name, tensor in tiny_models.tensors(once).items() if not torch.equal(tensor, found[name])] == []
    assert perplexity(once) == pytest.approx(wanted, rel=0.01)
    outcome = program.run("oneshot", out, "--output", results / "thrice", "--algorithm", "rtn", "--scheme", "FP8_DYNAMIC")
    assert "cannot load the result" in outcome.errors and "no engine loads" in outcome.output
    assert "no engine loads" in (results / "thrice" / "README.md").read_text()
    # A reader of compressed-tensors' place alone; the numbers outlive another compression.
    del config["moe_sparsity_config"]
    (twice / "config.json").write_text(json.dumps(config))
    assert perplexity(twice) == perplexity(once)


def test_different_numbers_are_refused(source, samples, results, tmp_path):
    def refused(folder, *fragments, options=(), **arguments):
        program.fails("oneshot", folder, "--output", results / "out", "--recipe", recipe(tmp_path, uniform=False, **arguments), "--dataset",
                      samples, *options, fragments=fragments)

    refused(source, "removes 21 experts, but at most 18 can go", sparsity=0.9)
    refused(any_model.save(tmp_path / "granite", "granitemoe"), "uniform: false", "one number of experts")
    out, _ = pruned(source, results / "out", samples, tmp_path, uniform=False)
    program.fails("oneshot", out, "--output", results / "model.gguf", "--scheme", "F16", fragments=["moe_sparsity_config", "equally many"])
    config = json.loads((out / "config.json").read_text())
    for damage, fragment in (({"method": "novice"}, "only 'prune' is"), ({"num_experts": [3, 3]}, "2 entries for 3 layers"),
                             ({"num_experts": [1, 4, 4]}, "layer 0 has 1 experts"), ({"num_experts": ["3", 4, 4]}, "is no number")):
        broken = {**config, "moe_sparsity_config": {**config["moe_sparsity_config"], **damage}}
        (out / "config.json").write_text(json.dumps(broken))
        program.fails("inspect", out, fragments=["moe_sparsity_config", fragment])


QUANTIZERS = {
    "GPTQ": ("GPTQModifier", {"scheme": "W8A8", "ignore": ["lm_head"]}),
    "best": ("GPTQModifier", {"scheme": "W8A8", "ignore": ["lm_head"], "error_propagation": True, "weight_observer": "gptq"}),
    "rounding": ("QuantizationModifier", {"scheme": "FP8_DYNAMIC", "ignore": ["lm_head"]}),
    "NVFP4": ("QuantizationModifier", {"scheme": "NVFP4", "ignore": ["lm_head"]}),
}


@pytest.mark.parametrize("quantizer", nightly_but(QUANTIZERS, "GPTQ"))
def test_with_a_quantizer(quantizer, source, samples, results, tmp_path):
    """In one command, the bytes are those of two."""
    modifier = QUANTIZERS[quantizer]
    out, kept = pruned(source, results / "out", samples, tmp_path, modifier)
    again = tmp_path / "quantizer.yaml"
    again.write_text(json.dumps({"a_stage": {"m_modifiers": {modifier[0]: modifier[1]}}}))
    wanted = program.oneshot(sliced(source, tmp_path / "sliced", kept), results / "two", "--recipe", again, "--dataset", samples, *EXACT)
    expected, found = tiny_models.tensors(wanted), tiny_models.tensors(out)
    assert found.keys() == expected.keys() and any(name.endswith(("_packed", "_scale")) for name in found)
    assert [name for name in expected if not torch.equal(found[name], expected[name])] == []
    assert json.loads((out / "config.json").read_text()) == json.loads((wanted / "config.json").read_text())


def test_resumed_run_measures_nothing(source, samples, results, tmp_path):
    modifier = ("GPTQModifier", {"scheme": "W8A8", "ignore": ["lm_head"]})
    arguments = ["--recipe", recipe(tmp_path, modifier), "--dataset", samples, *EXACT, "--threads", "1"]
    whole = contents(program.oneshot(source, results / "whole", *arguments))
    killed(source, results / "out", *arguments, subgraphs=2)
    (tmp_path / "other").mkdir()
    program.fails("oneshot", source, "--output", results / "out", "--recipe", recipe(tmp_path / "other", modifier, sparsity=0.25), *arguments[2:],
                  "--resume", fragments=["the recipe is another one", "--overwrite"], code=2)
    errors = program.run("oneshot", source, "--output", results / "out", *arguments, "--resume").errors
    assert "are those of the run that is continued" in errors and "measuring" not in errors
    assert differing(results / "out", whole) == []
    # The finished output is known again, too.
    errors = program.run("oneshot", source, "--output", results / "out", *arguments, "--resume").errors
    assert "measuring" not in errors and differing(results / "out", whole) == []
    others = program.write_samples(tmp_path / "others.jsonl", tiny_models.random_samples([40, 30], seed=9))
    program.fails("oneshot", source, "--output", results / "out", *arguments[:2], "--dataset", others, *arguments[4:], "--resume",
                  fragments=["chosen on other data", "--overwrite"], code=2)


def test_plan(source, results, tmp_path):
    """Nothing is measured for a plan, which counts the experts that stay."""
    def written(*arguments):
        plan = program.run("oneshot", source, "--output", results / "out", *arguments, "--dry-run", "--json").json()
        return sum(subgraph["written_bytes"] for subgraph in plan["subgraphs"])

    pruned = written("--recipe", recipe(tmp_path, ("GPTQModifier", {"scheme": "W8A8"})))
    assert pruned < 0.8 * written("--scheme", "W8A8")
    assert list(results.iterdir()) == []


def test_refusals(source, samples, model, results, tmp_path):
    def refused(folder, *fragments, code=1, **arguments):
        program.fails("oneshot", folder, "--output", results / "out", "--recipe", recipe(tmp_path, **arguments), "--dataset", samples,
                      code=code, fragments=fragments)
        assert list(results.iterdir()) == []

    refused(source, "report_path", "a file of the model", code=2, report_path=str(source / "config.json"))
    other = tmp_path / "settings.json"
    other.write_text('{"precious": 1}')
    refused(source, "report_path", "is there and is no list of experts", report_path=str(other))
    assert other.read_text() == '{"precious": 1}'
    refused(model, "no mixture of experts")
    refused(source, "each token takes 2", sparsity=0.9)
    refused(source, "model.layers.1.mlp", ignore=["layers.1"])
    refused(source, "model.layers.1.mlp", ignore=["re:.*layers.1.*"])
    llama = any_model.save(tmp_path / "llama4", "llama4_text", num_experts_per_tok=2)
    refused(llama, "experts", "cannot be removed")
