"""Ranks that cannot work together are told so before any work, naming what differs."""

import json
import shutil
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import program, ranked_runs, tiny_models
from support.exact_model import EXACT, differing
from support.ranked_runs import GRACE, TIMEOUT, RankedRun

LIMIT = ["--timeout", TIMEOUT]


def refused(run, results, *fragments):
    ended = run.end_by_failing(*fragments)
    assert list(results.iterdir()) == []
    return ended


@pytest.mark.parametrize("options, fragment", [
    (["--scheme", "W4A16_ASYM"], "scheme"), (["--group-size", "32"], "group-size"), (["--seed", "7"], "seed"),
    (["--num-calibration-samples", "3"], "num-calibration-samples"), (["--pipeline", "basic"], "pipeline"),
    (["--batch-tokens", "77"], "batch-tokens"), (["--max-shard-size", "100KB"], "max-shard-size"),
], ids=lambda value: value if isinstance(value, str) else "")
def test_other_options(options, fragment, exact, results):
    own = lambda rank: options if rank == 1 else []
    how = [*EXACT, "--dataset", exact.dataset, *LIMIT]
    refused(RankedRun(3, exact.folder, results / "out", *how, own=own), results, "rank 1", fragment)


def test_other_recipe(exact, results, tmp_path):
    for rank, bits in enumerate((4, 8)):
        arguments = {"targets": ["Linear"], "ignore": ["lm_head"], "config_groups": {"group_0": {
            "targets": ["Linear"], "weights": {"num_bits": bits, "strategy": "channel"}}}}
        (tmp_path / f"{rank}.json").write_text(json.dumps({"test_stage": {"m_modifiers": {"GPTQModifier": arguments}}}))
    run = RankedRun(2, exact.folder, results / "out", "--dataset", exact.dataset, *LIMIT,
                    own=lambda rank: ["--recipe", tmp_path / f"{rank}.json"])
    refused(run, results, "rank 1", "recipe")


def test_other_dataset(exact, results, tmp_path):
    """Another number of rows, or rows that differ: each rank reads a part, so the files themselves must agree."""
    lines = exact.dataset.read_text().splitlines(keepends=True)
    (tmp_path / "other.jsonl").write_text("".join(lines[:-1]) + '{"input_ids": [1, 2, 3]}\n')
    run = RankedRun(2, exact.folder, results / "out", *exact.scheme, *LIMIT,
                    own=lambda rank: ["--dataset", [exact.dataset, tmp_path / "other.jsonl"][rank]])
    refused(run, results, "rank 1", "dataset")


def test_other_model(exact, results, tmp_path):
    model = tiny_models.save(tmp_path / "other", dtype=torch.bfloat16, hidden_size=128, num_hidden_layers=2)
    run = RankedRun(2, None, results / "out", *exact.solving, *LIMIT,
                    model_of=lambda rank: [exact.folder, model][rank])
    refused(run, results, "rank 1", "model")


def test_other_weights(exact, results, tmp_path):
    """The same config and shapes, other numbers."""
    model = exact.with_settings(tmp_path / "other")
    tensors = {name: tensor * 2 for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    run = RankedRun(2, None, results / "out", *exact.solving, *LIMIT, model_of=lambda rank: [exact.folder, model][rank])
    refused(run, results, "rank 1", "model")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_another_tokenizer(name, exact, results, tmp_path):
    """Each rank makes tokens of its rows."""
    models = [shutil.copytree(exact.folder, tmp_path / copy) for copy in ("one", "other")]
    for folder, text in zip(models, ("{}", "{ }")):
        (folder / name).write_text(text)
    run = RankedRun(2, None, results / "out", *exact.solving, *LIMIT, model_of=lambda rank: models[rank])
    refused(run, results, "rank 1", name)
    (models[0] / name).unlink()  # only one has it
    run = RankedRun(2, None, results / "out", *exact.solving, *LIMIT, model_of=lambda rank: models[rank])
    refused(run, results, "rank 1", name)


@pytest.mark.parametrize("option", ["--resume", "--overwrite", "--dry-run"])
@pytest.mark.parametrize("ranked", [0, 1])
def test_options_that_decide_what_ranks_do_together(option, ranked, exact, results):
    """Found at once, not when the ranks have waited for each other."""
    run = RankedRun(2, exact.folder, results / "out", *exact.solving, "--timeout", "600", own=lambda rank: [option] if rank == ranked else [])
    refused(run, results, "rank 1", option)


def test_other_program(exact, results, tmp_path):
    """Another build, or the same one damaged; what follows the last section of a program changes nothing that it does."""
    other = shutil.copy(program.PROGRAM, tmp_path / "layerpress")
    behind = program.PROGRAM.with_name("layerpress-program")  # what the launcher starts
    with open(shutil.copy(behind, tmp_path / behind.name), "ab") as file:
        file.write(b"another build")
    run = RankedRun(2, exact.folder, results / "out", *exact.solving, *LIMIT,
                    program_of=lambda rank: [program.PROGRAM, other][rank])
    refused(run, results, "rank 1", "program")


def test_copied_checkpoint_is_the_same_model(exact, expected, results, tmp_path):
    """Another path with the same content, as on a second machine."""
    copy = shutil.copytree(exact.folder, tmp_path / "copy", copy_function=shutil.copyfile)
    out = ranked_runs.run(2, None, results / "out", *exact.solving, model_of=lambda rank: [exact.folder, copy][rank])
    assert differing(out, expected) == []


def test_checkpoint_that_one_rank_cannot_see(exact, results, tmp_path):
    run = RankedRun(3, None, results / "out", *exact.solving, *LIMIT,
                    model_of=lambda rank: tmp_path / "nowhere" if rank == 2 else exact.folder)
    refused(run, results, "rank 2", "nowhere")


def test_dataset_that_one_rank_cannot_see(exact, results, tmp_path):
    run = RankedRun(2, exact.folder, results / "out", *exact.scheme, *LIMIT,
                    own=lambda rank: ["--dataset", [exact.dataset, tmp_path / "nowhere.jsonl"][rank]])
    refused(run, results, "rank 1", "nowhere.jsonl")


def test_output_elsewhere(exact, results):
    """The folder has the same name for both, but one of them sees a disk of its own there."""

    def prefix(rank):
        return ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs none "{results}" && exec "$@"', "sh"] if rank == 1 else []

    if not ranked_runs.may_mount():
        pytest.skip("a private mount needs root")
    run = RankedRun(2, exact.folder, results / "out", *exact.solving, *LIMIT, prefix_of=prefix)
    refused(run, results, "rank 1", str(results))


def test_output_that_is_there(exact, results):
    """What one process refuses, ranks refuse together, with one line."""
    (results / "out").mkdir()
    (results / "out" / "kept").write_text("old")
    ended = RankedRun(3, exact.folder, results / "out", *exact.solving, *LIMIT).end(TIMEOUT + GRACE)
    assert all(code != 0 for code in ended.codes) and "--overwrite" in ended.error
    assert [file.name for file in (results / "out").iterdir()] == ["kept"]


def test_port_in_use(exact, results):
    """Whoever listens there is no store; no rank waits longer than it was told."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        run = RankedRun(2, exact.folder, results / "out", *exact.solving, *LIMIT, port=other.getsockname()[1])
        ended = run.end(TIMEOUT + GRACE)
    assert all(code != 0 for code in ended.codes), ended.errors
    assert any(str(run.port) in line for line in ended.error_lines), ended.errors
    assert list(results.iterdir()) == []


def test_rank_that_does_not_come(exact, results):
    run = RankedRun(3, exact.folder, results / "out", *exact.solving, *LIMIT, only=[0, 2])
    ended = run.end(TIMEOUT + GRACE)
    assert all(code != 0 for code in ended.codes)
    assert any("rank 1 of 3" in line for line in ended.error_lines), ended.errors
    assert list(results.iterdir()) == []


@pytest.mark.parametrize("variables", [{"RANK": "one"}, {"RANK": "5"}, {"WORLD_SIZE": "0"}, {"MASTER_PORT": "99999"},
                                       {"MASTER_ADDR": ""}], ids=str)
def test_environment_that_makes_no_sense(variables, exact, results):
    run = RankedRun(2, exact.folder, results / "out", *exact.solving, only=[1], environment_of=lambda rank: variables)
    refused(run, results, next(iter(variables)))


@pytest.mark.parametrize("value", ["0", "-3", "soon"])
def test_time_out_that_makes_no_sense(value, exact, results):
    outcome = program.run("oneshot", exact.folder, "--output", results / "out", *exact.solving, "--timeout", value, code=None)
    assert outcome.code == 2 and ("timeout" in outcome.error or "time-out" in outcome.error)
    assert list(results.iterdir()) == []
