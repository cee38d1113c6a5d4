"""What would spoil a result without a sign of it: NaN in activations, errors greater than what they are errors of."""

import json

import pytest
import torch
from support import program, tiny_models

GPTQ = ["--group-size", "32"]


@pytest.fixture
def own(model, tmp_path):
    """A copy of the model to change, by a function of its tensors."""
    import shutil

    folder = shutil.copytree(model, tmp_path / "own")

    def change(name, function):
        tensors = tiny_models.tensors(folder)
        tensors[name] = function(tensors[name])
        tiny_models.rewrite_tensors(folder, tensors)
        return folder

    return change


def one_token(embedding):
    """Token 5 lies in one channel only, so that a norm makes it eight times as great there as that channel of an average token."""
    embedding = embedding.clone()
    embedding[5] = 0
    embedding[5, 3] = 1
    return embedding


@pytest.mark.parametrize("options", [GPTQ, [*GPTQ, "--pipeline", "basic"], [*GPTQ, "--quality", "best"]], ids=["sequential", "basic", "best"])
def test_infinite_activations_name_module_and_sample(options, own, results, tmp_path):
    def enlarge(norm):
        norm = norm.clone()
        norm[3] = 5e37
        return norm

    own("model.embed_tokens.weight", one_token)
    model = own("model.layers.0.input_layernorm.weight", enlarge)
    rows = program.write_samples(tmp_path / "rows.jsonl", [[1, 2, 3], [4, 6, 7], [9, 5, 8, 9], [1, 1]])
    outcome = program.oneshot(model, results / "out", *options, "--dataset", rows, code=1)
    assert "model.layers.0." in outcome.error and "sample 3 (from 1)" in outcome.error, outcome.error
    assert "NaN or infinite" in outcome.error and not (results / "out").exists()


@pytest.mark.parametrize("recipe", [GPTQ, ["--recipe", "SparseGPTModifier"]], ids=["gptq", "pruning"])
def test_squares_that_overflow_name_the_module(recipe, own, samples, results, tmp_path):
    if recipe is not GPTQ:
        recipe = [recipe[0], tmp_path / "recipe.json"]
        recipe[1].write_text(json.dumps({"a_stage": {"a_modifiers": {"SparseGPTModifier": {"sparsity": 0.5, "ignore": ["lm_head"]}}}}))
    model = own("model.layers.1.input_layernorm.weight", lambda norm: torch.full_like(norm, 1e20))
    outcome = program.oneshot(model, results / "out", *recipe, "--dataset", samples, "--dtype", "fp32", code=1)
    assert "model.layers.1.self_attn.q_proj: the squares of its inputs overflow" in outcome.error, outcome.error
    assert not (results / "out").exists()


def test_figures_of_a_broken_model(own, model, samples):
    """Neither of the model nor of the reference, which would make the model look bad."""
    broken = own("model.layers.1.input_layernorm.weight", lambda norm: norm.fill_(float("nan")))
    for arguments in ([broken], [model, "--reference", broken]):
        program.fails("eval", *arguments, "--dataset", samples, fragments=[f"[evaluate] {broken}: its predictions are not numbers"])


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_attention_hides_no_broken_weight(dtype, own, samples):
    """Its exponential is clamped, which makes a number of NaN."""
    def spoil(weight):
        weight[3, 5] = float("nan")
        return weight

    broken = own("model.layers.0.self_attn.k_proj.weight", spoil)
    program.fails("eval", broken, "--dataset", samples, "--dtype", dtype, fragments=["its predictions are not numbers"])


def test_experts(results, tmp_path):
    """A router's value is looked at, too; which of the samples reached an expert is not known."""
    model = tiny_models.save(tmp_path / "model", "Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32)
    tensors = tiny_models.tensors(model)
    tensors["model.layers.1.post_attention_layernorm.weight"].fill_(3e38)
    tiny_models.rewrite_tensors(model, tensors)
    rows = program.write_samples(tmp_path / "rows.jsonl", [[1, 2, 3], [4, 6, 7]])
    outcome = program.oneshot(model, results / "out", *GPTQ, "--dataset", rows, code=1)
    assert "model.layers.1.mlp" in outcome.error and "sample 1 (from 1)" in outcome.error, outcome.error


def test_errors_above_everything_are_counted(own, samples, results, tmp_path):
    """One huge weight makes all others of its channel zeros."""
    def drown(weight):
        weight = weight.clone()
        weight[:, 0] = 1e4
        return weight

    name = "model.layers.1.mlp.up_proj.weight"
    model = own(name, drown)
    tensors = tiny_models.tensors(model)
    tensors["model.layers.1.post_attention_layernorm.weight"][0] = 0  # so that the huge weights change no output
    tiny_models.rewrite_tensors(model, tensors)
    summary = tmp_path / "summary.json"
    outcome = program.run("oneshot", model, "--output", results / "out", "--scheme", "W4A16", "--group-size", "64", "--dataset", samples,
                          "--summary", summary, "--report", tmp_path / "report.html")
    found = json.loads(summary.read_text())["outsized_errors"]
    assert name.removesuffix(".weight") in [module["module"] for module in found], found
    assert "an error greater than" in outcome.errors and "with an error above 100 %" in outcome.output
    assert "Errors above 100 %" in (tmp_path / "report.html").read_text()


def test_a_good_result_has_no_warning(model, samples, results, tmp_path):
    summary = tmp_path / "summary.json"
    outcome = program.run("oneshot", model, "--output", results / "out", *GPTQ, "--dataset", samples, "--summary", summary)
    assert json.loads(summary.read_text())["outsized_errors"] == [] and "above 100 %" not in outcome.output
    assert torch.isfinite(tiny_models.tensors(results / "out")["model.norm.weight"]).all()
