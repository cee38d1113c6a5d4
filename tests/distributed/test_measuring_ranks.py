"""A measuring run of several ranks gives the figures of one."""

import json
import os
import subprocess

import pytest
from support import exact_model, program, ranked_runs, tiny_models

SCHEMES = "W4A16,FP8,NVFP4"


def measure(ranks, model, *arguments, own=lambda rank: []):
    """The output of every rank; `own`: its own arguments."""
    port = ranked_runs.free_port()
    command = [program.PROGRAM, "inspect", model, "--sensitivity", "--threads", "1", *arguments]
    processes = [subprocess.Popen([str(word) for word in (*command, *own(rank))], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env={**os.environ, **ranked_runs.rank_environment(rank, ranks, port)}) for rank in range(ranks)]
    return [(process, *process.communicate(timeout=90)) for process in processes]


def test_figures_of_two_ranks(exact, tmp_path):
    """FP8 keeps the rows of a weight together, W4A16 does not; q, k and v share NVFP4's global scale."""
    arguments = ["--dataset", exact.dataset, "--group-size", "64", "--dtype", "fp32", "--json", "--schemes"]
    for schemes in (SCHEMES, "W4A16"):
        alone = program.run("inspect", exact.folder, "--sensitivity", "--threads", "1", *arguments, schemes).json()
        [(first, output, errors), (second, silence, _)] = measure(2, exact.folder, *arguments, schemes)
        assert first.returncode == second.returncode == 0, errors
        assert silence == ""
        together = json.loads(output)
        assert (together["tokens"], together["samples"]) == (alone["tokens"], alone["samples"])
        assert [own["module"] for own in together["modules"]] == [own["module"] for own in alone["modules"]]
        for ours, theirs in zip(together["modules"], alone["modules"]):
            assert ours["tokens"] == theirs["tokens"]
            for scheme, own in theirs["schemes"].items():
                assert ours["schemes"][scheme]["error"] == pytest.approx(own["error"], rel=1e-5), (ours["module"], scheme)


def test_one_rank_reports_a_refusal(exact):
    outcomes = measure(2, exact.folder, "--schemes", "W4A17", "--dataset", exact.dataset)
    assert [process.returncode for process, _, _ in outcomes] == [2, 2]
    errors = [line for _, _, text in outcomes for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "W4A17" in errors[0]


@pytest.mark.parametrize("options", [["--schemes", "W8A16"], ["--num-calibration-samples", "3"]], ids=lambda options: options[0])
def test_ranks_with_other_options(options, exact):
    """Found at once, not when the ranks have waited for each other."""
    outcomes = measure(2, exact.folder, "--dataset", exact.dataset, "--timeout", "600",
                       own=lambda rank: options if rank == 1 else ["--schemes", "W4A16"])
    assert all(process.returncode != 0 for process, _, _ in outcomes)
    assert any(f"{options[0]} " in text and "rank 1" in text for _, _, text in outcomes), outcomes


def test_choice_of_two_ranks(exact, tmp_path):
    """Schemes are chosen by the figures of all ranks, which write one output with them: that of one rank with this choice."""
    model = tiny_models.save(tmp_path / "model", **exact_model.SIZES)  # the exact model's predictions are the same whatever its weights are
    data = ["--dataset", exact.dataset, "--dtype", "fp32"]
    choice = ["--schemes", "W4A16,W8A16", "--target-bits", "6", "--group-size", "64", "--algorithm", "rtn"]
    summary, recipe = tmp_path / "summary.json", tmp_path / "recipe.yaml"
    ended = ranked_runs.RankedRun(2, model, tmp_path / "together", *data, *choice, "--summary", summary).end()
    assert ended.codes == [0, 0], ended.errors
    decision = json.loads(summary.read_text())["mixed_precision"]
    alone = program.run("inspect", model, "--sensitivity", *data, *choice[:2], *choice[4:6], "--json").json()
    assert (decision["samples"], decision["tokens"]) == (alone["samples"], alone["tokens"])
    assert {unit["scheme"] for unit in decision["units"]} == {"W4A16", "W8A16"} and decision["bits"] <= 6
    recipe.write_text(decision["recipe"])
    expected = tiny_models.tensors(program.oneshot(model, tmp_path / "alone", "--dtype", "fp32", "--recipe", recipe, "--threads", "1"))
    found = tiny_models.tensors(tmp_path / "together")
    assert found.keys() == expected.keys() and all(found[name].equal(tensor) for name, tensor in expected.items())
