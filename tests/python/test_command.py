"""The contract with the program that runs the helper: a process, one JSON document each way, one file."""

import json
import struct
import subprocess
import sys

import pytest
from layerpress_data import command
from layerpress_data.errors import DataError
from support.program import REPOSITORY

SCRIPT = REPOSITORY / "python" / "prepare.py"


def run(request, *, python=(sys.executable, "-s"), directory=None):
    return subprocess.run(
        [*python, str(SCRIPT)], input=json.dumps(request), capture_output=True, text=True, cwd=directory, timeout=120
    )


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "w1 w2"}\n{"messages": [{"role": "user", "content": "w3"}]}\n')
    return path


def test_process(words, rows, tmp_path):
    request = {"model": str(words), "dataset": "rows.jsonl", "output": "tokens.safetensors"}
    process = run(request, directory=tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    assert json.loads(process.stdout) == {"samples": 2, "tokens": 3, "skipped_empty": 0, "requested": 512}
    assert process.stdout.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl", "tokens.safetensors"]


def test_file_format(words, rows, tmp_path):
    """Read byte by byte, as a program without the safetensors package would."""
    output = tmp_path / "tokens.safetensors"
    run({"model": str(words), "dataset": str(rows), "output": str(output)})
    content = output.read_bytes()
    (header_size,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + header_size]), content[8 + header_size :]
    assert header["__metadata__"] == {"format": "layerpress.calibration.v1", "samples": "2", "tokens": "3"}
    assert (header["input_ids"]["dtype"], header["input_ids"]["shape"]) == ("I32", [3])
    assert (header["sample_offsets"]["dtype"], header["sample_offsets"]["shape"]) == ("I64", [3])
    first, last = header["input_ids"]["data_offsets"]
    assert struct.unpack("<3i", data[first:last]) == (1, 2, 3)
    first, last = header["sample_offsets"]["data_offsets"]
    assert struct.unpack("<3q", data[first:last]) == (0, 2, 3)


def test_decoding(words):
    process = run({"model": str(words), "decode": [[3], [1, 2], []]})
    assert (process.returncode, json.loads(process.stdout)) == (0, {"texts": ["w3", "w1 w2", ""]})
    process = run({"model": str(words), "decode": "w3"})
    assert process.returncode == 2 and "decode" in process.stderr


def test_failure_of_the_process(words, tmp_path):
    process = run({"model": str(words), "dataset": str(tmp_path / "none.csv"), "output": str(tmp_path / "x")})
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("error: [data.prepare] ") and process.stderr.count("\n") == 1


def test_fallback_to_transformers_keeps_the_streams_clean(rows, tmp_path):
    from support import tiny_checkpoints

    model = tiny_checkpoints.save(tmp_path / "model", "byte_level", "gpt2", {"chat_template": "hello"})
    process = run({"model": str(model), "dataset": str(rows), "output": str(tmp_path / "x.safetensors")})
    assert (process.returncode, process.stderr) == (0, "")
    assert json.loads(process.stdout)["samples"] == 2


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.txt", "rows.parquet"])
def test_files_load_no_heavy_package(words, tmp_path, name):
    """Neither torch, which costs seconds, nor what only other inputs need."""
    from test_dataset_files import WRITERS, write_parquet

    WRITERS.get(name, write_parquet)(tmp_path / name)
    request = json.dumps({"model": str(words), "dataset": str(tmp_path / name), "output": str(tmp_path / "x")})
    code = (
        "import io, sys; sys.path.insert(0, sys.argv[1]); from layerpress_frame.program import main;"
        "from layerpress_data.command import answer;"
        "assert main('data.prepare', answer, io.BytesIO(sys.argv[2].encode()), sys.stdout, sys.stderr) == 0; print(*sys.modules)"
    )
    command = [sys.executable, "-s", "-c", code, str(SCRIPT.parent), request]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    loaded = set(output.splitlines()[-1].split())
    assert "tokenizers" in loaded
    assert not loaded & {"torch", "transformers", "datasets", "huggingface_hub", "pandas", "jinja2"}
    assert ("pyarrow" in loaded) == (name == "rows.parquet")


def test_memory_of_a_real_run(real_checkpoint, tmp_path):
    """The helper runs beside the program, whose own memory is small."""
    path = tmp_path / "rows.txt"
    path.write_text("\n\n".join("The boot loader lives in the master boot record. " * 40 for _ in range(64)))
    request = {"model": str(real_checkpoint), "dataset": str(path), "output": str(tmp_path / "x.safetensors")}
    code = (
        "import resource, subprocess, sys;"
        "subprocess.run([sys.executable, '-s', sys.argv[1]], input=sys.argv[2].encode(), check=True,"
        " stdout=subprocess.DEVNULL);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    command = [sys.executable, "-c", code, str(SCRIPT), json.dumps(request)]
    kibibytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert kibibytes < 150 * 1024


def test_token_ids_need_no_tokenizer(tmp_path):
    """Faults of the data are named first, too."""
    (tmp_path / "model").mkdir()
    (tmp_path / "rows.jsonl").write_text('{"input_ids": [5, 6, 7], "text": null}\n')
    request = {"model": str(tmp_path / "model"), "output": str(tmp_path / "out.safetensors")}
    assert command.answer({**request, "dataset": str(tmp_path / "rows.jsonl")}, None)["tokens"] == 3
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="has no rows"):
        command.answer({**request, "dataset": str(tmp_path / "empty.jsonl")}, None)
    (tmp_path / "texts.jsonl").write_text('{"text": "some"}\n')
    with pytest.raises(DataError, match="tokenizer"):
        command.answer({**request, "dataset": str(tmp_path / "texts.jsonl")}, None)
