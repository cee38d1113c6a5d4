"""Mixtures of experts: runs that are killed and resumed, the memory they plan and take, and what they say of experts."""

import json

import pytest
import torch
from support import any_model, planned_runs, program, tiny_models
from support.planned_runs import MIB, Measured, plan
from support.random_kills import Undisturbed, resume_and_compare, survive_kills
from support.selection import nightly_but
from support.watched_runs import WatchedRun, finished_subgraphs, killed
from test_memory_plan import check, smallest_budget

LAYERS, EXPERTS, MIN_TOKENS = 3, 12, 700
ROUTED = "--no-moe-calibrate-all-experts"
MODES = {"all tokens": [], "routed tokens": [ROUTED, "--min-tokens-per-expert", MIN_TOKENS]}
LINEAR = ["--sequential-targets", "Linear"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose layers take a moment each, with its data beside it."""
    folder = tmp_path_factory.mktemp("experts")
    program.write_token_file(folder / "tokens.safetensors", tiny_models.random_samples([256] * 12))
    return tiny_models.save(folder / "model", "Qwen3Moe", torch.bfloat16, hidden_size=256, num_hidden_layers=LAYERS,
                            num_experts=EXPERTS, num_experts_per_tok=3, moe_intermediate_size=128, head_dim=64,
                            max_position_embeddings=512)


def gptq(model):
    return ["--group-size", "32", "--dataset", model.with_name("tokens.safetensors"), "--threads", "1"]


def test_partial_sums_on_disk(results, tmp_path):
    """Each expert adds to a sum that another subgraph has begun; in the scratch file it is read only."""
    small = tiny_models.save(tmp_path / "model", "Qwen3Moe", torch.bfloat16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)
    program.write_token_file(tmp_path / "tokens.safetensors", tiny_models.random_samples([40] * 6))
    options = ["--group-size", "32", "--dataset", tmp_path / "tokens.safetensors", *LINEAR]
    in_memory, on_disk = (program.oneshot(small, results / place, *options, "--sequential-offload-device", place) for place in ("cpu", "disk"))
    assert (on_disk / "model.safetensors").read_bytes() == (in_memory / "model.safetensors").read_bytes()


@pytest.mark.nightly
@pytest.mark.parametrize("cut", [[], LINEAR], ids=["layers", "linears"])
@pytest.mark.parametrize("mode", MODES)
def test_kills(mode, cut, model, results):
    """At any moment of a layer's experts: the resumed run's bytes are those of an undisturbed one."""
    survive_kills(model, results / "out", [*gptq(model), *MODES[mode], *cut], kills=3, seed=6)


@pytest.mark.parametrize("mode", MODES)
def test_killed_between_experts(mode, model, results):
    """Linear by linear, resumed and killed again while a layer's experts are under way, the last one's, too."""
    arguments = [*gptq(model), *MODES[mode], *LINEAR]
    undisturbed = Undisturbed(model, results / "out", arguments)
    done = 0
    for count in (8, 20, 33, 99):  # of 4 + 3 * 12 linears in each layer
        resume = ["--resume"] if done else []
        assert WatchedRun(model, results / "out", *arguments, *resume).wait_for_subgraphs(count).kill()
        done = finished_subgraphs(results / "out")
        assert done >= count
    resume_and_compare(model, results / "out", arguments, undisturbed, results.with_name("summary.json"))


def test_killed_in_one_pass(model, results):
    """The basic pipeline calibrates again and compresses what is missing."""
    arguments = [*gptq(model), "--pipeline", "basic", *MODES["routed tokens"]]
    undisturbed = Undisturbed(model, results / "out", arguments)
    killed(model, results / "out", *arguments, subgraphs=2)
    resume_and_compare(model, results / "out", arguments, undisturbed, results.with_name("summary.json"))


# ---- memory

@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Experts are nearly all of it."""
    folder = tmp_path_factory.mktemp("large")
    return tiny_models.save(folder / "model", "Qwen3Moe", torch.bfloat16, hidden_size=1024, num_hidden_layers=2, num_experts=24,
                            num_experts_per_tok=4, moe_intermediate_size=512, head_dim=64, num_attention_heads=8,
                            vocab_size=planned_runs.VOCABULARY, max_position_embeddings=512)


def data(model):
    return [*planned_runs.data(model.parent, 4, 256), "--threads", "2"]


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_plan_against_reality(mode, large, results):
    """Layer by layer and linear by linear, which takes less where experts are most of a layer."""
    peaks = []
    for number, cut in enumerate(([], LINEAR)):
        arguments = [*data(large), *MODES[mode], *cut]
        planned = plan(large, results / f"out{number}", *arguments)
        measured = Measured(large, results / f"out{number}", *arguments)
        check(planned, measured)
        peaks.append((planned["peak_bytes"], measured.peak_bytes))
    (planned, measured), (planned_linear, measured_linear) = peaks
    assert planned_linear < 0.75 * planned and measured_linear < 0.75 * measured


@pytest.mark.parametrize("mode", nightly_but(MODES, "all tokens"))
def test_smallest_budget(mode, large, results):
    """The budget that the refusal names is enough."""
    arguments = [*data(large), *MODES[mode]]
    outcome = program.fails("oneshot", large, "--output", results / "out", *arguments, "--memory-budget", "20MiB",
                            fragments=["error: [plan]", "at least", "--sequential-targets Linear"])
    text, count = smallest_budget(outcome.error)
    measured = Measured(large, results / "out", *arguments, "--memory-budget", text)
    assert measured.peak_bytes <= count, f"{measured.peak_bytes / MIB:.0f} MiB of {text}"


def test_smallest_budget_of_a_choice_of_schemes(large, results):
    """Enough for what is measured, too: models with rounded weights, beside each other."""
    arguments = [*planned_runs.data(large.parent, 16, 256), "--target-bits", "6", "--schemes", "W4A16,W8A16", "--threads", "2"]
    planned = plan(large, results / "out", *arguments)
    # Room for values that need not go to the disk is what a budget in between would be used for.
    assert planned["smallest_budget_bytes"] < max(step["peak_bytes"] for step in planned["measurement"]) - 4 * MIB
    plan(large, results / "out", *arguments, "--memory-budget", planned["smallest_budget_bytes"])


def test_smallest_budget_of_unequal_layers(large, results, tmp_path):
    """It is enough however the experts that stay are divided among layers, and less is refused before anything is measured."""
    stages = {"a_stage": {"m_modifiers": {"REAPPruningModifier": {"sparsity": 0.5, "uniform": False}}},
              "b_stage": {"m_modifiers": {"GPTQModifier": {"scheme": "W4A16", "ignore": ["lm_head"]}}}}
    (tmp_path / "recipe.json").write_text(json.dumps(stages))
    arguments = [*planned_runs.data(large.parent, 4, 256), "--recipe", tmp_path / "recipe.json", "--threads", "2"]
    planned = plan(large, results / "out", *arguments)["smallest_budget_bytes"]
    outcome = program.fails("oneshot", large, "--output", results / "out", *arguments, "--memory-budget", planned - 4 * MIB,
                            fragments=["error: [plan]", "the run needs at least"])
    assert "info: measuring" not in outcome.errors and list(results.iterdir()) == []
    measured = Measured(large, results / "out", *arguments, "--memory-budget", planned)
    assert measured.peak_bytes <= planned, f"{measured.peak_bytes / MIB:.0f} MiB of {planned / MIB:.0f}"


# ---- what is said

def run_with_summary(model, results, *options):
    summary = results.with_name("summary.json")
    outcome = program.run("oneshot", model, "--output", results / "out", *gptq(model), *options, "--summary", summary,
                          "--overwrite")
    return json.loads(summary.read_text()), [line for line in outcome.errors.splitlines() if "filled up" in line]


def test_filled_experts_are_counted(model, results):
    summary, lines = run_with_summary(model, results, *MODES["routed tokens"])
    filled = {module["module"].rsplit(".", 1)[0] for module in summary["modules"]
              if module["tokens"] > module.get("routed_tokens", module["tokens"])}
    layers = {expert.rsplit(".", 2)[0] for expert in filled}
    assert summary["filled_experts"] == len(filled) > 0 and len(filled) < LAYERS * EXPERTS
    assert len(lines) == 1 and lines[0].startswith("info: ")
    assert f"{len(filled)} experts of {len(layers)} layers had fewer than {MIN_TOKENS} tokens and were filled up" in lines[0]
    for module in summary["modules"]:
        if "routed_tokens" in module:
            assert module["tokens"] >= max(MIN_TOKENS, module["routed_tokens"])


def test_nothing_is_said_where_nothing_is_filled_up(model, results):
    for options in ([], [ROUTED, "--min-tokens-per-expert", "1"]):
        summary, lines = run_with_summary(model, results, *options)
        assert summary["filled_experts"] == 0 and lines == []


@pytest.mark.parametrize("family", nightly_but(["glm4_moe", "hunyuan_v1_moe", "ernie4_5_moe", "nemotron_h"], "glm4_moe"))
def test_routers_that_compute_in_fp32(family, tmp_path, monkeypatch):
    """In a bf16 model they are no linears of the graph, which then has no scores beside the routing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = any_model.save(tmp_path / "model", family, torch.bfloat16)
    tokens = program.write_token_file(tmp_path / "tokens.safetensors", tiny_models.random_samples([40, 64, 30], 250))
    options = ["--scheme", "W8A8", "--dataset", tokens, ROUTED]
    counts = {}
    for least in (1, 50):
        out = tmp_path / f"least {least}"
        program.oneshot(model, out, *options, "--min-tokens-per-expert", least, "--summary", tmp_path / "summary.json")
        modules = json.loads((tmp_path / "summary.json").read_text())["modules"]
        counts[least] = {each["module"]: each["tokens"] for each in modules if ".experts." in each["module"]}
        program.run("verify", out, "--source", model)
    assert counts[1] and min(counts[1].values()) < 50 <= min(counts[50].values())
