"""What stands in the way of going on: other options, other inputs, damaged files, a full disk, a second run."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from support import deep_model, program, tiny_models
from support.watched_runs import JOURNAL, RUN, WatchedRun, contents, differing, finished_subgraphs, journal_line, killed, unfinished

ROUNDING = ["--algorithm", "rtn", "--group-size", "32"]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return deep_model.save(tmp_path_factory.mktemp("deep"))


@pytest.fixture(scope="module")
def solving(deep):
    return deep_model.gptq(deep)


@pytest.fixture(scope="module")
def expected(deep, solving, tmp_path_factory):
    """The output of an undisturbed run."""
    return contents(program.oneshot(deep, tmp_path_factory.mktemp("expected") / "out", *solving))


@pytest.fixture(scope="module")
def half_done(deep, solving, tmp_path_factory):
    """Where an output would be if its run had not been killed. Tests must leave it so: they are refused."""
    out = tmp_path_factory.mktemp("half") / "out"
    killed(deep, out, *solving)
    return out


@pytest.fixture
def own_model(deep, tmp_path):
    """A copy of the model to change."""
    return shutil.copytree(deep, tmp_path / "own")


def refused(model, out, *arguments, fragments, code=2):
    """The program refuses to go on and leaves everything as it is."""
    before = contents(out.parent)
    outcome = program.fails("oneshot", model, "--output", out, *arguments, fragments=fragments, code=code)
    assert differing(out.parent, before) == []
    return outcome


def resumed(model, out, expected, *arguments, **options):
    """The program goes on and ends with the expected bytes; returns the outcome."""
    outcome = program.run("oneshot", model, "--output", out, *arguments, "--resume", **options)
    assert differing(out, expected) == []
    assert list(out.parent.iterdir()) == [out]
    return outcome


def test_plain_run_says_how_far_the_earlier_one_came(deep, solving, half_done):
    progress = f"{finished_subgraphs(half_done)} of {deep_model.SUBGRAPHS} subgraphs"
    refused(deep, half_done, *solving, fragments=["did not finish", progress, "--resume", "--overwrite"])


def test_a_refused_request_is_not_to_be_repeated(deep, half_done, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("a: {b")
    outcome = refused(deep, half_done, "--recipe", recipe, "--resume", fragments=["recipe.yaml"], code=1)
    assert "continue with" not in outcome.errors


def test_overwrite_starts_over(deep, solving, results, expected, tmp_path):
    killed(deep, results / "out", *solving)
    program.oneshot(deep, results / "out", *solving, "--overwrite", "--summary", tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text())["resumed_subgraphs"] == 0
    assert differing(results / "out", expected) == [] and list(results.iterdir()) == [results / "out"]


def test_resume_with_nothing_there(deep, solving, results, expected):
    resumed(deep, results / "out", expected, *solving)


def test_resume_with_an_empty_output(deep, solving, results, expected):
    (results / "out").mkdir()
    resumed(deep, results / "out", expected, *solving)


def times(folder):
    return {file: file.stat().st_mtime_ns for file in [folder, *folder.iterdir()]}


def test_resume_of_a_complete_output(deep, solving, results, expected):
    out = program.oneshot(deep, results / "out", *solving)
    before = times(out)
    start = time.monotonic()
    outcome = resumed(deep, out, expected, *solving)
    assert time.monotonic() - start < 5 and times(out) == before
    assert "already complete" in outcome.output + outcome.errors


def test_resume_of_a_complete_output_of_another_model(own_model, solving, results):
    """The same architecture, fine-tuned: one norm differs."""
    program.oneshot(own_model, results / "out", *solving)
    tensors = load_file(own_model / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"][3] += 1
    save_file(tensors, own_model / "model.safetensors", {"format": "pt"})
    refused(own_model, results / "out", *solving, "--resume", fragments=["something else than this run's result", "--overwrite"])


def test_resume_of_a_complete_output_of_a_model_with_other_rows(own_model, results):
    """All later rows of a compressed weight differ, and the file's time is what it was."""
    program.oneshot(own_model, results / "out", *ROUNDING)
    file = own_model / "model.safetensors"
    before, tensors = file.stat(), load_file(file)
    tensors["model.layers.1.mlp.down_proj.weight"][40:] *= -1.5
    save_file(tensors, file, {"format": "pt"})
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    refused(own_model, results / "out", *ROUNDING, "--resume", fragments=["result of another run: the model's weights differ", "--overwrite"])


def test_resume_into_a_folder_that_holds_something_else(deep, solving, results):
    (results / "out").mkdir()
    (results / "out" / "notes.txt").write_text("kept")
    refused(deep, results / "out", *solving, "--resume", fragments=["no checkpoint", "--overwrite"])


@pytest.mark.parametrize("damage", [{"boundary": None}, {"boundary": 7}, {"modules": "none"}, {"modules": [{"module": 1}]},
                                    {"tensors": {}}, {"tensors": {"no such tensor": "00"}}, {"index": -1}])
def test_journal_with_a_damaged_record(damage, deep, solving, results, expected):
    """What the record cannot prove is done again."""
    killed(deep, results / "out", *solving, "--sequential-offload-device", "disk")
    path = unfinished(results / "out") / JOURNAL
    lines = path.read_text().splitlines()
    lines[2] = journal_line({**json.loads(lines[2]), **damage})
    path.write_text("\n".join(lines) + "\n")
    resumed(deep, results / "out", expected, *solving, "--sequential-offload-device", "disk")


@pytest.mark.parametrize("plan", [{"threads": []}, {"threads": [0]}, {"threads": 7}, {"threads": ["two"]}, {"batch_tokens": "many"},
                                  {"ranks": "one"}, 3])
def test_journal_with_a_damaged_header(plan, deep, solving, results):
    killed(deep, results / "out", *solving[:-2])
    path = unfinished(results / "out") / JOURNAL
    header, *records = path.read_text().splitlines()
    header = json.loads(header)
    header["plan"] = plan if plan == 3 else {**header["plan"], **plan}
    path.write_text("\n".join([journal_line(header), *records]) + "\n")
    outcome = program.run("oneshot", deep, "--output", results / "out", *solving[:-2], "--resume", code=None)
    assert outcome.code in (1, 2) and "[internal]" not in outcome.error, outcome.errors


def test_resume_of_a_complete_output_with_another_recipe(deep, solving, results):
    out = program.oneshot(deep, results / "out", *solving)
    refused(deep, out, *solving, "--scheme", "W8A16", "--resume", fragments=["out"])
    refused(deep, out, *ROUNDING, "--resume", fragments=["out"])


OTHER_OPTIONS = {
    "scheme": (["--scheme", "W8A16"], ["scheme", "W4A16", "W8A16"]),
    "group size": (["--group-size", "64"], ["group-size", "32", "64"]),
    "observer": (["--observer", "minmax"], ["observer", "minmax"]),
    "algorithm": (["--algorithm", "rtn"], ["algorithm", "gptq", "rtn"]),
    "ignore": (["--ignore", "lm_head", "re:.*down_proj"], ["ignore", "re:.*down_proj"]),
    "pipeline": (["--pipeline", "basic"], ["pipeline", "basic"]),
    "sequential targets": (["--sequential-targets", "Linear"], ["sequential-targets", "Linear"]),
    "precision": (["--dtype", "float32"], ["dtype", "float32"]),
    "shards": (["--max-shard-size", "300KB"], ["max-shard-size", "5GB", "300KB"]),
    "fewer samples": (["--num-calibration-samples", "5"], ["num-calibration-samples", "512", "5"]),
    "shorter samples": (["--max-seq-length", "100"], ["max-seq-length", "2048", "100"]),
}


@pytest.mark.parametrize("case", OTHER_OPTIONS)
def test_other_options(case, deep, solving, half_done):
    options, fragments = OTHER_OPTIONS[case]
    given = list(solving)
    if options[0] in given:
        del given[given.index(options[0]):given.index(options[0]) + 2]
    refused(deep, half_done, *given, *options, "--resume", fragments=fragments)


FINISHED = {**{case: OTHER_OPTIONS[case] for case in ("pipeline", "precision", "fewer samples", "shorter samples")},
            "missing data": (["--dataset", "nothing.jsonl"], ["nothing.jsonl", "no such file"])}


@pytest.mark.parametrize("case", FINISHED)
def test_resume_of_a_complete_output_with_other_options(case, deep, solving, results):
    """What neither config nor recipe say; the data must be there, too."""
    options, fragments = FINISHED[case]
    out = program.oneshot(deep, results / "out", *solving)
    given = list(solving)
    if options[0] in given:
        del given[given.index(options[0]):given.index(options[0]) + 2]
    refused(deep, out, *given, *options, "--resume", fragments=fragments, code=None)


def test_resume_of_a_complete_output_with_other_data(deep, solving, results, tmp_path):
    out = program.oneshot(deep, results / "out", *solving)
    other = tmp_path / "other.safetensors"
    program.write_token_file(other, tiny_models.random_samples([256] * 16, seed=1))
    given = list(solving)
    given[given.index("--dataset") + 1] = other
    refused(deep, out, *given, "--resume", fragments=["the complete result of another run", "the dataset's tokens differ", "--overwrite"])
    before = contents(out)
    program.oneshot(deep, out, *given, "--resume", "--overwrite")
    assert differing(out, before) != []


def test_resume_of_a_complete_output_of_a_model_trained_on(own_model, solving, results):
    """Only a weight that is compressed differs, so that nothing in the output is copied from it."""
    program.oneshot(own_model, results / "out", *solving)
    tensors = load_file(own_model / "model.safetensors")
    tensors["model.layers.1.self_attn.q_proj.weight"][0] += 1
    save_file(tensors, own_model / "model.safetensors", {"format": "pt"})
    refused(own_model, results / "out", *solving, "--resume", fragments=["the model's weights differ"])


def test_resume_of_a_complete_output_that_does_not_say_its_data(deep, solving, results):
    """As earlier versions wrote it."""
    out = program.oneshot(deep, results / "out", *solving)
    (out / RUN).unlink()
    outcome = program.run("oneshot", deep, "--output", out, *solving, "--num-calibration-samples", "5", "--resume")
    assert "already complete" in outcome.output and "data and options" in outcome.errors and "not compared" in outcome.errors


def test_other_dataset(deep, solving, half_done, tmp_path):
    """Other tokens under the same name: the options are equal, the data is not."""
    data = solving[solving.index("--dataset") + 1]
    kept = data.read_bytes()
    try:
        program.write_token_file(data, tiny_models.random_samples([256] * 16, seed=1))
        refused(deep, half_done, *solving, "--resume", fragments=["the dataset's tokens differ"])
    finally:
        data.write_bytes(kept)


def test_same_tokens_in_another_file(deep, solving, results, expected, tmp_path):
    """What counts is what is calibrated with, not where it lies."""
    killed(deep, results / "out", *solving)
    data = solving.index("--dataset") + 1
    moved = shutil.copy(solving[data], tmp_path / "moved.safetensors")
    outcome = program.run("oneshot", deep, "--output", results / "out", *solving[:data], moved, *solving[data + 1:],
                          "--resume", code=None)
    assert outcome.code == 0 and differing(results / "out", expected) == [] or "dataset" in outcome.error


@pytest.mark.parametrize("change", ["time", "size"])
def test_model_that_changed(change, own_model, solving, results):
    killed(own_model, results / "out", *solving)
    weights = own_model / "model.safetensors"
    if change == "time":
        os.utime(weights, (1, 1))
    else:
        stat = weights.stat()
        with weights.open("ab") as file:
            file.write(b"more")
        os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    code = 2 if change == "time" else None  # bytes after the last tensor may be refused before the journal is read
    outcome = refused(own_model, results / "out", *solving, "--resume", fragments=["model.safetensors"], code=code)
    assert outcome.code != 0


def test_model_whose_configuration_changed(own_model, solving, results):
    killed(own_model, results / "out", *solving)
    tiny_models.rewrite_config(own_model, lambda config: config.update(rms_norm_eps=1e-3))
    refused(own_model, results / "out", *solving, "--resume", fragments=["config.json", "changed"])


@pytest.mark.parametrize("options", [
    ["--threads", "2"], ["--memory-budget", "3GiB"], ["--sequential-offload-device", "disk"],
    ["--log-level", "debug"], ["--no-progress"],
], ids=lambda options: options[0])
def test_options_that_may_change(options, deep, solving, results, expected, tmp_path):
    """Equal bytes as long as the threads are the same ones, equal codes in any case."""
    out = results / "out"
    done = killed(deep, out, *solving)
    given = solving if options[0] != "--threads" else solving[:-2]
    program.oneshot(deep, out, *given, *options, "--resume", "--summary", tmp_path / "summary.json")
    assert json.loads((tmp_path / "summary.json").read_text())["resumed_subgraphs"] == done
    if options[0] != "--threads":
        assert differing(out, expected) == []
    tiny_models.load(out)
    assert list(results.iterdir()) == [out]


def written_tensor(out, prefix):
    """A shard of the unfinished output, and where in it a weight of a module with this name lies."""
    for path in sorted(unfinished(out).glob("*.safetensors")):
        with safe_open(path, "np") as file:
            names = [name for name in file.keys() if name.startswith(prefix) and name.endswith("weight_packed")]
        if names:
            length = int.from_bytes(path.read_bytes()[:8], "little")
            header = json.loads(path.read_bytes()[8:8 + length])
            return path, 8 + length + header[names[0]]["data_offsets"][0]
    raise AssertionError(f"no compressed weight of {prefix} was written")


def flip(path, offset):
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0x10]))


@pytest.mark.parametrize("layer", [0, 2])
def test_damaged_shard(layer, deep, solving, results, expected):
    killed(deep, results / "out", *solving, subgraphs=5)
    flip(*written_tensor(results / "out", f"model.layers.{layer}."))
    outcome = resumed(deep, results / "out", expected, *solving)
    assert any("warning" in line and f"model.layers.{layer}" in line for line in outcome.errors.splitlines()), outcome.errors


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def spoil_header(path):
    flip(path, 20)


@pytest.mark.parametrize("damage", [cut, os.unlink, spoil_header], ids=["cut", "gone", "header"])
def test_shard_that_is_no_longer_one(damage, deep, solving, results, expected):
    killed(deep, results / "out", *solving)
    damage(next(unfinished(results / "out").glob("*.safetensors")))
    outcome = resumed(deep, results / "out", expected, *solving)
    assert "warning" in outcome.errors


@pytest.mark.parametrize("line, place", [(0, "recipe"), (2, "modules")])
def test_journal_with_a_flipped_bit(line, place, deep, solving, results, expected):
    """Neither a choice in the header nor a figure is taken from a line that was changed."""
    killed(deep, results / "out", *solving)
    journal = unfinished(results / "out") / JOURNAL
    lines = journal.read_text().splitlines(keepends=True)
    digit = re.search(r"\d", lines[line][lines[line].index(f'"{place}"'):])
    at = lines[line].index(f'"{place}"') + digit.start()
    lines[line] = lines[line][:at] + chr(ord(lines[line][at]) ^ 1) + lines[line][at + 1:]
    journal.write_text("".join(lines))
    outcome = resumed(deep, results / "out", expected, *solving)
    assert ("whose journal is damaged" if line == 0 else "1 of ") in outcome.errors


def test_another_model_with_the_same_times(deep, solving, results, tmp_path):
    model = shutil.copytree(deep.parent, tmp_path / "copy") / deep.name
    weights = model / "model.safetensors"
    os.utime(weights, (1, 1))
    killed(model, results / "out", *solving)
    tensors = {name: -tensor if name.endswith("q_proj.weight") else tensor for name, tensor in load_file(weights).items()}
    save_file(tensors, weights, {"format": "pt"})
    os.utime(weights, (1, 1))
    refused(model, results / "out", *solving, "--resume", fragments=["the model's weights differ", "--overwrite"])


def test_journal_that_ends_in_the_middle_of_a_record(deep, solving, results, expected):
    """As a machine that lost power may leave it."""
    killed(deep, results / "out", *solving)
    journal = unfinished(results / "out") / JOURNAL
    with journal.open("ab") as file:
        file.write(journal.read_bytes().splitlines()[-1][:-10])
    resumed(deep, results / "out", expected, *solving)


def test_journal_that_lost_its_last_records(deep, solving, results, expected):
    """Tensors that no record names are not trusted."""
    killed(deep, results / "out", *solving, subgraphs=5)
    journal = unfinished(results / "out") / JOURNAL
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:3]))
    resumed(deep, results / "out", expected, *solving)


def test_half_written_file(deep, solving, results, expected):
    """A kill while a small file is written leaves it under its temporary name, which must not get into the output."""
    killed(deep, results / "out", *solving)
    (unfinished(results / "out") / "recipe.yaml.tmp.4711").write_text("quant_st")
    resumed(deep, results / "out", expected, *solving)


@pytest.mark.parametrize("text", [b"", b"\x00" * 500, b"{}\n", b"[" * 10_000 + b"\n", b'{"record":"header"}\n'],
                         ids=["empty", "zeros", "other", "deep", "bare"])
def test_journal_that_is_none(text, deep, solving, results, expected):
    """It may be refused with an error, or counted as nothing; --overwrite starts over in any case."""
    killed(deep, results / "out", *solving)
    (unfinished(results / "out") / JOURNAL).write_bytes(text)
    outcome = program.run("oneshot", deep, "--output", results / "out", *solving, "--resume", code=None)
    if outcome.code != 0:
        assert outcome.code in (1, 2) and outcome.error
        program.oneshot(deep, results / "out", *solving, "--overwrite")
    assert differing(results / "out", expected) == [] and list(results.iterdir()) == [results / "out"]


def test_second_run_into_the_same_output(deep, solving, results, expected):
    first = WatchedRun(deep, results / "out", *solving).wait_for_subgraphs(2).send(signal.SIGSTOP)
    try:
        for options in ([], ["--resume"], ["--overwrite"]):
            program.fails("oneshot", deep, "--output", results / "out", *solving, *options, code=2,
                          fragments=["another run is writing"])
    finally:
        first.send(signal.SIGCONT)
    assert first.end().code == 0
    assert differing(results / "out", expected) == [] and list(results.iterdir()) == [results / "out"]


def test_output_files_may_not_grow_any_more(deep, solving, results, expected):
    """A quota that is reached in the middle of a run."""
    run = WatchedRun(deep, results / "out", *solving).wait_for_subgraphs(3)
    resource.prlimit(run.process.pid, resource.RLIMIT_FSIZE, (0, 0))
    outcome = run.end()
    assert outcome.code == 1 and str(results) in outcome.error
    assert finished_subgraphs(results / "out") >= 3
    resumed(deep, results / "out", expected, *solving)


SPILLING = ["--sequential-offload-device", "disk"]


def test_scratch_file_may_not_grow(deep, solving, results, tmp_path):
    """Shards of the output are smaller than the limit, activations are larger."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    limit = 1_000_000
    arguments = [*solving, "--max-shard-size", "300KB", *SPILLING, "--offload-dir", scratch]
    outcome = program.fails("oneshot", deep, "--output", results / "out", *arguments, fragments=[str(scratch), "--offload-dir"],
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    assert outcome.output == ""
    program.oneshot(deep, results / "out", *arguments, "--resume")
    assert list(scratch.iterdir()) == [] and list(results.iterdir()) == [results / "out"]
    program.oneshot(deep, results / "plain", *arguments)
    assert differing(results / "out", contents(results / "plain")) == []


def test_scratch_disk_too_small(deep, solving, results, expected, tmp_path):
    """A disk of one megabyte, mounted where only this run sees it: found out before any work."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    own_disk = ["unshare", "--map-root-user", "--mount", "sh", "-c",
                f'mount -t tmpfs -o size=1m tmpfs "{scratch}" && exec "$@"', "sh"]
    if subprocess.run([*own_disk, "true"], capture_output=True).returncode != 0:
        pytest.skip("no permission to mount a small disk; test_scratch_file_may_not_grow stands for it")
    arguments = [*solving, *SPILLING, "--offload-dir", scratch]
    outcome = WatchedRun(deep, results / "out", *arguments, prefix=own_disk).end()
    assert outcome.code == 1
    assert str(scratch) in outcome.error and "1.00 MiB free" in outcome.error and "--offload-dir" in outcome.error
    assert list(results.iterdir()) == []
    resumed(deep, results / "out", expected, *arguments)


def test_model_truncated_while_it_is_mapped(own_model, solving, results):
    weights = own_model / "model.safetensors"
    run = WatchedRun(own_model, results / "out", *solving).wait_for_subgraphs(1)
    os.truncate(weights, 4096)
    outcome = run.end()
    assert outcome.code == 1, f"ended with {outcome.code}: {outcome.errors}"
    assert "model.safetensors" in outcome.error
    assert not (results / "out").exists()


def test_model_deleted_while_it_is_mapped(own_model, solving, results, expected):
    """An unlinked file stays whole for those who have it open."""
    run = WatchedRun(own_model, results / "out", *solving).wait_for_subgraphs(2)
    os.unlink(own_model / "model.safetensors")
    assert run.end().code == 0
    assert differing(results / "out", expected) == ["README.md"], "it names the model's folder"


@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_can_be_resumed(what, deep, solving, results, expected):
    run = WatchedRun(deep, results / "out", *solving).wait_for_subgraphs(3)
    start = time.monotonic()
    outcome = run.send(what).end(timeout=20)
    assert outcome.code == 130 and time.monotonic() - start < 5
    assert "--resume" in outcome.errors and unfinished(results / "out").exists()
    resumed(deep, results / "out", expected, *solving)


def test_a_tokenizer_that_goes_away(own_model, deep, solving, results):
    """A result without it would seem complete."""
    (own_model / "tokenizer.json").write_text("{}")
    run = WatchedRun(own_model, results / "out", *solving).wait_for_subgraphs(1).send(signal.SIGSTOP)
    (own_model / "tokenizer.json").rename(own_model.with_name("tokenizer.json"))
    outcome = run.send(signal.SIGCONT).end()
    assert outcome.code == 1 and "tokenizer.json" in outcome.error and not (results / "out").exists()
    own_model.with_name("tokenizer.json").rename(own_model / "tokenizer.json")
    out = program.oneshot(own_model, results / "out", *solving, "--resume")
    assert (out / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize("descriptor", ["2>&-", "2>/dev/full"])
def test_messages_that_are_lost_end_nothing(descriptor, deep, solving, expected, results):
    """As on a full disk, or behind `| head`."""
    words = [str(word) for word in (program.PROGRAM, "oneshot", deep, "--output", results / "out", *solving)]
    done = subprocess.run(["bash", "-c", f'"$@" {descriptor}', "bash", *words], stdout=subprocess.DEVNULL, check=False)
    assert done.returncode == 0 and differing(results / "out", expected) == []
