"""What users start: it answers questions about the command line itself and starts the program beside it."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from support.program import PROGRAM

STAND_IN = """#!/bin/sh
echo "spin=$GOMP_SPINCOUNT policy=$OMP_WAIT_POLICY arguments=$*"
exit 7
"""


@pytest.fixture
def launcher(tmp_path) -> Path:
    """The launcher alone, behind a link from another folder."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "links").mkdir()
    shutil.copy(PROGRAM, tmp_path / "bin" / "layerpress")
    link = tmp_path / "links" / "compress"
    link.symlink_to(tmp_path / "bin" / "layerpress")
    return link


def start(launcher: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess:
    own = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    kept = {name: value for name, value in os.environ.items() if name not in own}
    return subprocess.run([launcher, *arguments], env={**kept, **environment}, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments, code, begins", [
    (["--version"], 0, "layerpress "),
    (["oneshot", "--help"], 0, "Compress a model"),
    (["oneshot"], 2, "error: [options] MODEL is required; see --help"),
    (["inspect", "--architectures"], 1, "error: [start] "),
])
def test_answers_that_need_no_program(launcher, arguments, code, begins):
    result = start(launcher, *arguments)
    assert result.returncode == code
    assert (result.stderr or result.stdout).startswith(begins)


@pytest.mark.parametrize("environment, waiting", [
    ({}, "spin=2000 policy="),
    ({"GOMP_SPINCOUNT": "5"}, "spin=5 policy="),
    ({"OMP_WAIT_POLICY": "active"}, "spin= policy=active"),
])
def test_starts_the_program_beside_it(launcher, environment, waiting):
    program = launcher.resolve().with_name("layerpress-program")
    program.write_text(STAND_IN)
    program.chmod(0o755)
    result = start(launcher, "inspect", "a model", "--json", **environment)
    assert (result.returncode, result.stderr) == (7, "")
    assert result.stdout == f"{waiting} arguments=inspect a model --json\n"


@pytest.mark.parametrize("environment, said", [
    ({}, "pinned_use_cuda_host_register:True,pinned_num_register_threads:8"),
    ({"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}, "backend:native"),
    ({"PYTORCH_ALLOC_CONF": "backend:native"}, ""),
])
def test_memory_is_pinned_on_threads_unless_the_user_says_otherwise(launcher, environment, said):
    program = launcher.resolve().with_name("layerpress-program")
    program.write_text('#!/bin/sh\necho "$PYTORCH_CUDA_ALLOC_CONF"\n')
    program.chmod(0o755)
    assert start(launcher, "inspect", "a model", **environment).stdout == f"{said}\n"
