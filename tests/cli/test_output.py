"""What a run says: its first and last lines, progress, colours, and how wide it is."""

import json
import os
import re
import signal
import subprocess

import pytest
from support import deep_model, program
from support.terminal import COLUMNS, TerminalRun, screen
from support.watched_runs import finished_subgraphs

COMMANDS = ["oneshot", "eval", "inspect", "prepare"]


@pytest.fixture(scope="module")
def gptq(samples):
    return ["--dataset", samples, "--group-size", "32", "--threads", "2"]


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """A model and data that keep the program busy for two seconds or more after it has begun to write."""
    model = deep_model.save(tmp_path_factory.mktemp("long"), layers=10, samples=32)
    return [model, *deep_model.gptq(model)]


def test_first_and_last_lines(model, gptq, results):
    summary = results / "summary.json"
    outcome = program.run("oneshot", model, "--output", results / "my out", *gptq, "--num-calibration-samples", "8", "--summary",
                          summary)
    first, *others = outcome.errors.splitlines()
    assert re.fullmatch(r"info: model to W4A16 \(group 32\), 8 samples \(355 tokens\), on 2 CPU threads; "
                        r"plan: [\d.]+ MiB of memory, less than 2 minutes", first)
    assert not any(re.search(r"\d+/\d+", line) for line in others)  # no line a layer
    details = json.loads(summary.read_text())
    assert details["recipe"] == (results / "my out" / "recipe.yaml").read_text()
    lines = outcome.output.splitlines()
    assert lines[0] == f"{results / 'my out'}: 21 modules in W4A16 (group 32)"
    before, after = details["source_bytes"], details["output_bytes"]
    assert re.fullmatch(rf"  size   [\d.]+ KiB -> [\d.]+ KiB \({before / after:.2f} times smaller\)", lines[1])
    assert lines[2] == "  error  worst modules, relative to their outputs:"
    worst = details["worst_modules"]
    assert [line.split()[0] for line in lines[3:6]] == [f"{group['relative_output_error']:.4f}" for group in worst]
    assert re.fullmatch(r"  time   [\d.]+ s, peak memory [\d.]+ MiB", lines[6])
    assert lines[7] == f"  serve  vllm serve '{results / 'my out'}'"
    assert " ".join(" ".join(lines[8:]).split()) == "needs " + details["serving"]["hardware"]
    assert details["serving"]["command"] == f"vllm serve '{results / 'my out'}'"
    assert all(len(line) <= COLUMNS for line in lines[8:])


def test_worst_modules(model, gptq, results):
    """Linears that are solved together have one error, which is that of their outputs; without data it is the weights'."""
    summary = results / "summary.json"
    program.run("oneshot", model, "--output", results / "out", *gptq, "--summary", summary)
    details = json.loads(summary.read_text())
    error_of = {module["module"]: module["relative_output_error"] for module in details["modules"]}
    assert all(0 < error < 0.5 for error in error_of.values())
    listed = [group["relative_output_error"] for group in details["worst_modules"]]
    assert listed == sorted(set(error_of.values()), reverse=True)[:3]
    for group in details["worst_modules"]:
        assert {error_of[name] for name in group["modules"]} == {group["relative_output_error"]}
    program.run("oneshot", model, "--output", results / "rounded", "--algorithm", "rtn", "--scheme", "FP8_DYNAMIC", "--summary", summary)
    details = json.loads(summary.read_text())
    worst = max(details["modules"], key=lambda module: module["weight_error"])
    assert details["worst_modules"][0] == {"modules": [worst["module"]], "weight_error": worst["weight_error"]}
    assert details["scheme"] == "FP8_DYNAMIC" and "Hopper" in details["serving"]["hardware"]


@pytest.mark.parametrize("command", [[], *([command] for command in COMMANDS)])
def test_help_fits_the_terminal(command):
    lines = program.run(*command, "--help").output.splitlines()
    assert max(map(len, lines)) <= COLUMNS and not any(line != line.rstrip() for line in lines)


def test_plan_fits_the_terminal(model, gptq, tmp_path):
    for arguments in (["oneshot", model, "--output", tmp_path / "out", "--dry-run"], ["inspect", model, "--plan"]):
        text = program.run(*arguments, *gptq).output
        assert max(map(len, text.splitlines())) <= COLUMNS and "memory: peak " in text


def test_reference_perplexity(model, samples, results):
    """That of the reference evaluated alone, in the JSON and in a table of 80 columns."""
    out = program.oneshot(model, results / "out", "--algorithm", "rtn", "--group-size", "32")
    arguments = ["eval", out, "--dataset", samples, "--threads", "1"]
    alone = program.run("eval", model, *arguments[2:]).json()
    both = program.run(*arguments, "--reference", model).json()
    assert both["reference_perplexity"] == pytest.approx(alone["perplexity"], rel=1e-6) != both["perplexity"]
    table = program.run(*arguments, "--reference", model, "--table").output
    assert max(map(len, table.splitlines())) <= COLUMNS
    shown = re.search(r"^reference.s perplexity +([\d.]+)$", table, re.MULTILINE)
    assert float(shown[1]) == pytest.approx(alone["perplexity"], abs=1e-3)


def test_other_spellings(model, gptq, results):
    """Underscores in names of options, and the short names of dtypes."""
    summary = results / "summary.json"
    program.run("oneshot", model, "--output", results / "out", *gptq, "--num_calibration_samples=3", "--dtype", "fp32",
                "--memory_budget", "4 G", "--summary", summary)
    details = json.loads(summary.read_text())
    assert details["samples"] == 3 and details["dtype"] == "float32" and details["plan"]["budget_bytes"] == 4 << 30


def test_colours_on_terminals_only(tmp_path):
    arguments = ["oneshot", tmp_path / "missing", "--output", tmp_path / "out"]
    assert "\x1b[31merror:\x1b[0m [" in TerminalRun(*arguments, NO_COLOR="").end(code=1)
    assert "\x1b" not in TerminalRun(*arguments, NO_COLOR="1").end(code=1)
    assert "\x1b" not in TerminalRun(*arguments, TERM="dumb").end(code=1)
    assert "\x1b" not in program.run(*arguments, code=1).errors


def test_stopped_and_resumed_on_a_terminal(long_run, results):
    """The command that continues the run stays on the screen; continued, the bar begins where the run does."""
    out = results / "out"
    arguments = ["oneshot", long_run[0], "--output", out, *long_run[1:]]
    run = TerminalRun(*arguments)
    while finished_subgraphs(out) < 3:
        assert run.process.poll() is None, run.raw
    run.process.send_signal(signal.SIGINT)
    lines = screen(run.end(code=130))
    assert lines[-1].startswith("error: ") and lines[-2].startswith("continue with: ") and lines[-2].endswith(" --resume")
    assert not any(line.startswith("model [") for line in lines)
    finished = finished_subgraphs(out)
    raw = TerminalRun(*arguments, "--resume").end(code=0)
    shown = [int(done) for done in re.findall(r"model \[[#.]+\] (\d+)/\d+", raw)]
    assert not set(range(1, finished)) & set(shown) and max(shown) >= finished
    assert f"\x1b[1m{out}: " in raw


def test_a_line_for_every_step_at_debug(model, gptq, results):
    outcome = program.run("oneshot", model, "--output", results / "out", *gptq, "--log-level", "debug")
    assert [line.split()[2] for line in outcome.errors.splitlines() if re.match(r"info: \d+/\d+ model\.layers", line)] == [
        f"model.layers.{layer}" for layer in range(3)]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
@pytest.mark.parametrize("options", [[], ["--overwrite"]], ids=["", "overwritten"])
def test_a_bind_mount_is_refused_before_the_work(options, model, tmp_path):
    """Of a folder in the same file system, which has the same device number."""
    for name in ("mounted", "target"):
        (tmp_path / name).mkdir()
    run = f'exec "$2" oneshot "$3" --output "$1/mounted" --algorithm rtn --group-size 32 {" ".join(options)}'
    command = f'mount --bind "$1/target" "$1/mounted" && {run}'
    done = subprocess.run(["unshare", "-m", "sh", "-c", command, "sh", tmp_path, program.PROGRAM, model], capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 2 and "is a mount point" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mounted", "target"]


def test_a_token_file_has_the_name_that_datasets_are_known_by(model, samples, tmp_path):
    program.fails("prepare", model, "--dataset", samples, "--output", tmp_path / "tokens.jsonl", code=2, fragments=["--output", ".safetensors"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("option", ["--num-calibration-samples", "--max-seq-length"])
def test_numbers_beyond_what_is_counted_are_all(option, model, samples, tmp_path):
    program.run("oneshot", model, "--output", tmp_path / "out", "--dataset", samples, "--group-size", "32", option, 2**62)
