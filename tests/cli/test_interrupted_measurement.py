"""Runs that measure before they compress, interrupted meanwhile: --resume goes on, to the same result."""

import json
import shutil
import signal

import pytest
import torch
from support import deep_model, program, tiny_models
from support.ranked_runs import RankedRun
from support.watched_runs import WatchedRun, contents, differing, journal_line, killed, measured, measured_records, unfinished

CHOICE = ["--schemes", "W4A16,W8A16,none", "--target-bits", "7", "--group-size", "32"]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return deep_model.save(tmp_path_factory.mktemp("deep"), layers=8, samples=16)


@pytest.fixture(scope="module")
def experts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experts")
    model = tiny_models.save(folder / "model", "Qwen3Moe", torch.bfloat16, hidden_size=128, num_hidden_layers=6, num_experts=16,
                             num_experts_per_tok=3, moe_intermediate_size=64, head_dim=32, max_position_embeddings=512)
    program.write_token_file(folder / "tokens.safetensors", tiny_models.random_samples([256] * 24))
    return model


def recipe(folder, kind, **arguments):
    (folder / "recipe.json").write_text(json.dumps({"a_stage": {"a_modifiers": {
        kind: arguments, "QuantizationModifier": {"scheme": "W8A8", "ignore": ["lm_head"]}}}}))
    return ["--recipe", folder / "recipe.json"]


def data(model):
    return ["--dataset", model.with_name("tokens.safetensors"), "--threads", "1"]


def cut_measurement(model, out, *arguments, records):
    """Leaves a run behind that was killed after so many records of its measurement."""
    run = WatchedRun(model, out, *arguments)
    assert run.wait_until(lambda: len(measured_records(out)) >= records), run.end().errors
    assert run.kill() and not out.exists()
    return measured_records(out)


def undisturbed(model, folder, *arguments):
    files = contents(program.oneshot(model, folder / "out", *arguments))
    assert list(folder.iterdir()) == [folder / "out"]
    return files


@pytest.fixture(scope="module")
def chosen(deep, tmp_path_factory):
    return undisturbed(deep, tmp_path_factory.mktemp("chosen"), *CHOICE, *data(deep))


def check(model, out, *arguments, records, said, expected):
    """A run that was killed after so many records goes on behind them and has the result of an undisturbed one."""
    before = cut_measurement(model, out, *arguments, records=records)
    if unfinished(out).exists():  # killed in the run that follows
        return
    errors = program.run("oneshot", model, "--output", out, *arguments, "--resume").errors
    assert said(before) in errors and "no unfinished run" not in errors
    assert differing(out, expected) == [] and list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("records", [1, 4, 11], ids=["first", "middle", "all but the check"])
def test_mixed_precision(records, deep, chosen, results):
    check(deep, results / "out", *CHOICE, *data(deep), records=records, expected=chosen,
          said=lambda before: f"{sum(record['part'] == 'modules' for record in before)} of 10 subgraphs are measured already")


@pytest.mark.parametrize("uniform", [True, False])
def test_experts(uniform, experts, results, tmp_path):
    arguments = [*recipe(tmp_path, "REAPPruningModifier", sparsity=0.5, uniform=uniform), *data(experts)]
    check(experts, results / "out", *arguments, records=3, expected=undisturbed(experts, tmp_path / "first", *arguments),
          said=lambda before: f"{sum(record['part'] == 'experts' for record in before)} of 6 layers with experts are measured already")


def test_another_run_that_did_not_finish(experts, results, tmp_path):
    """It is named before anything is measured."""
    out = results / "out"
    killed(experts, out, *recipe(tmp_path, "ConstantPruningModifier", targets=["re:.*up_proj"]), *data(experts), subgraphs=1)
    outcome = program.fails("oneshot", experts, "--output", out, *recipe(tmp_path, "REAPPruningModifier", sparsity=0.5), *data(experts),
                            fragments=["an earlier run did not finish", "--overwrite"], code=2)
    assert "measuring" not in outcome.errors and list(results.iterdir()) == [unfinished(out)]


def test_a_damaged_tokenizer_is_found_before_measuring(experts, results, tmp_path):
    damaged = tmp_path / "model"
    shutil.copytree(experts, damaged)
    (damaged / "tokenizer.json").write_text('{"version": "1.')
    for choice in (recipe(tmp_path, "REAPPruningModifier", sparsity=0.5), CHOICE):
        for dry in ([], ["--dry-run"]):
            outcome = program.fails("oneshot", damaged, "--output", results / "out", *choice, *data(experts), *dry,
                                    fragments=["tokenizer.json: is no JSON", "fetch it again"])
            assert "measuring" not in outcome.errors and "linears in" not in outcome.errors
    assert list(results.iterdir()) == []


def test_sparsities(deep, results, tmp_path):
    """The choice is kept until the output is complete, also if the run that follows has finished nothing."""
    arguments = [*recipe(tmp_path, "WandaPruningModifier", sparsity=0.5, sparsity_profile="owl", owl_m=5, owl_lmbda=0.08), *data(deep)]
    expected, out = undisturbed(deep, tmp_path / "first", *arguments), results / "out"
    cut_measurement(deep, out, *arguments, records=1)
    if unfinished(out).exists():
        (unfinished(out) / ".layerpress-journal.jsonl").unlink(missing_ok=True)
    errors = program.run("oneshot", deep, "--output", out, *arguments, "--resume").errors
    assert "outliers of layers" not in errors
    assert differing(out, expected) == [] and list(results.iterdir()) == [out]


def test_a_finished_result_is_not_measured_again(deep, results):
    out, arguments = results / "out", [*CHOICE, *data(deep)]
    program.oneshot(deep, out, *arguments)
    made = contents(out)
    outcome = program.run("oneshot", deep, "--output", out, *arguments, "--resume")
    assert "already complete" in outcome.output and "linears in" not in outcome.errors
    program.fails("oneshot", deep, "--output", out, *CHOICE[:3], "6.5", *CHOICE[4:], *data(deep), "--resume", code=2,
                  fragments=["is the complete result of another run: --target-bits was 7.0 and is 6.5", "--overwrite"])
    assert contents(out) == made and list(results.iterdir()) == [out]


def test_two_ranks(deep, results, tmp_path):
    arguments, out = [*CHOICE, *data(deep), "--timeout", "10"], results / "out"
    first = RankedRun(2, deep, tmp_path / "out", *arguments).end_well()
    run = RankedRun(2, deep, out, *arguments)
    run.wait_until(lambda: len(measured_records(out)) >= 3, "measures")
    run.send(0, signal.SIGKILL)
    run.end(60)
    before = len(measured_records(out))
    again = RankedRun(2, deep, out, *arguments, "--resume")
    again.end_well()
    assert f"{before} of 10 subgraphs are measured already" in again.text()
    assert differing(out, contents(first)) == [] and list(results.iterdir()) == [out]


def test_interrupted_on_request(deep, results):
    out, arguments = results / "out", [*CHOICE, *data(deep)]
    run = WatchedRun(deep, out, *arguments)
    assert run.wait_until(lambda: len(measured_records(out)) >= 2)
    outcome = run.send(signal.SIGINT).end()
    assert outcome.code == 130
    hint, error = outcome.errors.splitlines()[-2:]
    assert error == "error: stopped on request while measuring; continue with --resume"
    assert hint.startswith("continue with: ") and hint.endswith(" --resume")
    assert list(results.iterdir()) == [measured(out)]
    program.fails("oneshot", deep, "--output", out, *arguments, code=2,
                  fragments=["did not finish what it measures first", "--resume", "--overwrite"])
    other = [*CHOICE[:3], "6.5", *CHOICE[4:], *data(deep)]
    program.fails("oneshot", deep, "--output", out, *other, "--resume", code=2,
                  fragments=["unfinished measurement cannot be continued: --target-bits was 7.0 and is 6.5", "--overwrite"])
    errors = program.run("oneshot", deep, "--output", out, *arguments, "--overwrite").errors
    assert "measured already" not in errors and list(results.iterdir()) == [out]


def damage_module(record):
    record["reports"][0]["module"] = "other"


def damage_figures(record):
    record["reports"][0]["figures"].pop()


def damage_type(record):
    record["reports"] = 7


@pytest.fixture(scope="module")
def cut(deep, tmp_path_factory):
    """The text of a measurement that was killed."""
    out = tmp_path_factory.mktemp("cut") / "out"
    cut_measurement(deep, out, *CHOICE, *data(deep), records=4)
    return measured(out).read_text()


@pytest.mark.parametrize("damage", [damage_module, damage_figures, damage_type])
def test_damaged_records_are_refused(damage, cut, deep, results):
    out, lines = results / "out", cut.splitlines()
    record = next(record for record in map(json.loads, lines[1:]) if record["reports"])
    place = record["index"] + 1
    damage(record)
    measured(out).write_text("\n".join([*lines[:place], journal_line(record), *lines[place + 1:], ""]))
    program.fails("oneshot", deep, "--output", out, *CHOICE, *data(deep), "--resume", code=1,
                  fragments=[f"{measured(out)}: is damaged", "--overwrite"])


def test_a_line_that_was_cut_is_measured_again(cut, deep, chosen, results):
    out, arguments = results / "out", [*CHOICE, *data(deep)]
    measured(out).write_text(cut[:-20])
    program.run("oneshot", deep, "--output", out, *arguments, "--resume")
    assert differing(out, chosen) == []


def test_an_interrupted_choice_of_experts_says_how_to_go_on(experts, results, tmp_path):
    out, arguments = results / "out", [*recipe(tmp_path, "REAPPruningModifier", sparsity=0.5), *data(experts)]
    run = WatchedRun(experts, out, *arguments)
    assert run.wait_until(lambda: len(measured_records(out)) >= 2)
    outcome = run.send(signal.SIGINT).end()
    assert outcome.code == 130
    hint, error = outcome.errors.splitlines()[-2:]
    assert error == "error: stopped on request while measuring; continue with --resume"
    assert hint.startswith("continue with: ") and hint.endswith(" --resume")


def test_a_finished_result_that_says_nonsense_of_its_choice(deep, results):
    """Its run file may be anybody's."""
    out, arguments = results / "out", [*CHOICE, *data(deep)]
    program.oneshot(deep, out, *arguments)
    file = out / ".layerpress-run.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "decision": {"schemes": 7}}))
    outcome = program.run("oneshot", deep, "--output", out, *arguments, "--resume")
    assert "linears in" in outcome.errors and "already complete" in outcome.output
    assert list(results.iterdir()) == [out]
