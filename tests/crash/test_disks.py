"""Disks that are full, small or read-only, mounted where only the run sees them."""

import subprocess

import pytest
import torch
from support import program, tiny_models
from support.watched_runs import contents, unfinished


def in_own_mounts(script, *arguments):
    """Runs a shell script that may mount; its last words are the code and the place's files."""
    command = ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "sh", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


pytestmark = pytest.mark.skipif(in_own_mounts("mount -t tmpfs none /mnt").returncode != 0, reason="no permission to mount a disk")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    program.write_token_file(folder / "tokens.safetensors", tiny_models.random_samples([40, 64]))
    return tiny_models.save(folder / "model", dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def expected(model, tmp_path_factory):
    return contents(program.oneshot(model, tmp_path_factory.mktemp("expected") / "out", *options(model)))


def options(model):
    return ["--group-size", "32", "--dataset", model.with_name("tokens.safetensors"), "--threads", "1"]


def command(model, out, *more):
    return [program.PROGRAM, "oneshot", model, "--output", out, *options(model), *more]


def error_of(process):
    lines = process.stderr.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, process.stderr
    return errors[0]


# The run on a small disk, then on the same disk with room; both results are copied out.
GROWING = """place=$1 size=$2 copy=$3; shift 3
mount -t tmpfs -o size=$size tmpfs "$place" || exit 99
"$@"; code=$?
ls -A "$place" > "$copy/left"
mount -o remount,size=64m "$place" || exit 99
[ $code = 0 ] || "$@" --resume || exit 98
ls -A "$place" > "$copy/left-at-the-end"
cp -r "$place/out" "$copy/out"
exit $code"""


def sizes(expected):
    """From less than the shards to more than everything, in pages."""
    whole = sum(map(len, expected.values()))
    return range(whole // 2 // 4096, whole // 4096 + 24)


@pytest.mark.nightly
def test_disk_of_every_size(model, expected, tmp_path):
    """It is full before the work, in the middle, at the journal, at the last small file, or not at all."""
    place = tmp_path / "place"
    place.mkdir()
    full = enough = 0
    for pages in sizes(expected):
        copy = tmp_path / f"copy{pages}"
        copy.mkdir()
        process = in_own_mounts(GROWING, place, pages * 4096, copy, *command(model, place / "out"))
        assert process.returncode in (0, 1), f"{pages} pages: {process.returncode} {process.stderr}"
        left = (copy / "left").read_text().split()
        if process.returncode == 0:
            enough += 1
            assert left == ["out"]
        else:
            full += 1
            assert str(place) in error_of(process) and left in ([], [unfinished(place / "out").name]), (pages, left, process.stderr)
        assert (copy / "left-at-the-end").read_text().split() == ["out"]
        assert contents(copy / "out") == expected, pages
    print(f"crash: disks of {full + enough} sizes: {full} were too small, all results equal in the end")
    assert full > 10 and enough > 3


def test_small_disk(model, expected, tmp_path):
    """Found before any work; nothing is left on it."""
    place = tmp_path / "place"
    place.mkdir()
    process = in_own_mounts('mount -t tmpfs -o size=64k tmpfs "$1"; place=$1; shift; "$@"; code=$?; ls -A "$place"; exit $code', place,
                            *command(model, place / "out"))
    assert process.returncode == 1 and process.stdout == "" and str(place) in error_of(process), process.stderr


def test_disk_without_room_for_files(model, tmp_path):
    """A quota of files."""
    place = tmp_path / "place"
    place.mkdir()
    process = in_own_mounts('mount -t tmpfs -o nr_inodes=4 tmpfs "$1"; place=$1; shift; "$@"; code=$?; ls -A "$place"; exit $code', place,
                            *command(model, place / "out"))
    assert process.returncode == 1 and process.stdout in ("", unfinished(place / "out").name + "\n"), process.stdout
    assert str(place) in error_of(process)


@pytest.mark.parametrize("what", ["output", "summary", "temporary folder", "offload folder"])
def test_read_only(what, model, tmp_path):
    place, results = tmp_path / "place", tmp_path / "results"
    place.mkdir(), results.mkdir()
    more = {"output": [], "summary": ["--summary", place / "summary.json"], "temporary folder": [],
            "offload folder": ["--sequential-offload-device", "disk", "--offload-dir", place]}[what]
    arguments = command(model, place / "out" if what == "output" else results / "out", *more)
    if what == "temporary folder":  # which the helper that reads text needs
        (tmp_path / "texts.jsonl").write_text('{"text": "w1 w2"}\n')
        arguments[arguments.index("--dataset") + 1] = tmp_path / "texts.jsonl"
    process = in_own_mounts('mount -t tmpfs tmpfs "$1"; mount -o remount,ro "$1"; export TMPDIR=$1; shift; exec "$@"', place, *arguments)
    assert process.returncode in (1, 2) and str(place) in error_of(process), process.stderr
    assert list(results.iterdir()) == []


def test_read_only_model(model, expected, tmp_path):
    """Nothing is written beside a model."""
    results = tmp_path / "results"
    results.mkdir()
    process = in_own_mounts('mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"; shift; exec "$@"', model.parent,
                            *command(model, results / "out"))
    assert process.returncode == 0, process.stderr
    assert contents(results / "out") == expected
