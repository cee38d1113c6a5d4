"""Runs the finished program and print_logits."""

import json
import os
import subprocess
from pathlib import Path

import numpy
from safetensors.numpy import load_file, save_file

from support.command_server import CommandServer

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("LAYERPRESS_PROGRAM", REPOSITORY / "build" / "layerpress")).absolute()
PRINT_LOGITS = Path(os.environ.get("LAYERPRESS_PRINT_LOGITS", PROGRAM.with_name("print_logits"))).absolute()
TEST_MODEL = Path(os.environ.get("LAYERPRESS_TEST_MODEL", REPOSITORY / ".cache" / "models" / "SmolLM2-135M-Instruct"))  # a real one
COMMAND_SERVER = PROGRAM.with_name("command_server.so")
servers = {}


class Outcome:
    """Exit code and output."""

    def __init__(self, process):
        self.code = process.returncode
        self.output = process.stdout
        self.errors = process.stderr

    def json(self):
        return json.loads(self.output)

    @property
    def error(self):
        """The error line, which must be the only one and the last of stderr."""
        lines = self.errors.splitlines()
        assert lines and lines[-1].startswith("error: "), self.errors
        assert sum(line.startswith("error: ") for line in lines) == 1, self.errors
        assert "Traceback" not in self.errors and "terminate called" not in self.errors, self.errors
        return lines[-1]


def run(*arguments, code=0, program=PROGRAM, **options):
    """Runs the program with `arguments` and checks its exit code."""
    command = [str(program), *(str(argument) for argument in arguments)]
    outcome = Outcome(completed(command, **options))
    assert code is None or outcome.code == code, f"exit code {outcome.code}: {outcome.output}{outcome.errors}"
    return outcome


def completed(command, **options):
    """The process that ran `command`: forked by a server, or of its own where `options` (subprocess's) ask for more."""
    environment = dict(options.get("env") or os.environ)
    if COMMAND_SERVER.exists() and command[0] in (str(PROGRAM), str(PRINT_LOGITS)) and options.keys() <= {"env", "cwd"}:
        server = servers.get(command[0]) or servers.setdefault(command[0], CommandServer(COMMAND_SERVER, loading(command[0])))
        if server.fits(environment):
            return server.run(command, environment, options.get("cwd") or os.getcwd(), timeout=300)
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300, **options)


def loading(program):
    """What loads libtorch: the program that the launcher starts, where `program` is the launcher."""
    started = program + "-program"
    return started if Path(started).exists() else program


def oneshot(model, output, *arguments, **options):
    """`layerpress oneshot`; with code=0 returns the output folder, else the outcome."""
    outcome = run("oneshot", model, "--output", output, *arguments, **options)
    return Path(output) if options.get("code", 0) == 0 else outcome


def fails(*arguments, fragments, code=1, **options):
    """Runs the program, expects `code` and an error line with all `fragments`."""
    outcome = run(*arguments, code=code, **options)
    for fragment in fragments:
        assert fragment in outcome.error, outcome.errors
    return outcome


def write_samples(path, samples):
    """Rows of input_ids, which need no tokenizer."""
    path.write_text("".join(json.dumps({"input_ids": list(map(int, sample))}) + "\n" for sample in samples))
    return path


def write_token_file(path, samples):
    """A token file as `layerpress prepare` writes it."""
    offsets = numpy.cumsum([0, *map(len, samples)], dtype=numpy.int64)
    tokens = numpy.concatenate([numpy.asarray(sample, dtype=numpy.int32) for sample in samples])
    save_file({"input_ids": tokens, "sample_offsets": offsets}, path)
    return path


def logits(model, samples, folder, dtype="float32", options=()):
    """The output of print_logits for `samples`, which it packs into one batch: one array [tokens, vocabulary] per sample."""
    tokens = write_token_file(folder / "tokens.safetensors", samples)
    written = folder / "logits.safetensors"
    run(model, tokens, written, "--dtype", dtype, *options, program=PRINT_LOGITS)
    whole = load_file(written)["logits"]
    return numpy.split(whole, numpy.cumsum([len(sample) for sample in samples])[:-1])
