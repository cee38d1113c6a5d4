"""The device code compiles for every generation that is supported, and what calls it against libtorch's headers; nothing of it
runs here."""
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NVCC = shutil.which("nvcc")
ARCHITECTURES = [80, 90, 100, 120]

pytestmark = pytest.mark.skipif(NVCC is None, reason="no nvcc on this machine")


def cuda_include() -> Path:
    """Where nvcc takes CUDA's headers from."""
    said = subprocess.run([NVCC, "--dryrun", "-x", "cu", "/dev/null", "-c", "-o", "/dev/null"], capture_output=True, text=True,
                          check=True).stderr
    tops = [line.split("=", 1)[1] for line in said.splitlines() if line.startswith("#$ TOP=")]
    return Path(tops[0]).resolve() / "include"


@pytest.mark.parametrize("source", sorted((ROOT / "layerpress").rglob("*.cu")), ids=lambda path: path.name)
def test_device_code(source: Path, tmp_path: Path):
    targets = [f"--generate-code=arch=compute_{number},code=sm_{number}" for number in ARCHITECTURES]
    done = subprocess.run([NVCC, "-std=c++17", "-O3", "--threads", "2", "-Werror", "all-warnings", "-Xptxas", "-v", "-I", str(ROOT),
                           *targets, "-c", str(source), "-o", str(tmp_path / "code.o")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    uses = [line for line in done.stderr.splitlines() if "spill stores" in line]
    assert len(uses) >= len(ARCHITECTURES)
    assert all(" 0 bytes spill stores" in line for line in uses), "registers spill to memory"


@pytest.mark.parametrize("source", sorted((ROOT / "layerpress" / "kernels" / "cuda").glob("device_*.cpp")), ids=lambda path: path.name)
def test_callers(source: Path, tmp_path: Path):
    import torch

    libtorch = Path(torch.__file__).parent / "include"
    # A libtorch for the CPU has CUDA's headers but for one that its build would write.
    made = tmp_path / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    made.parent.mkdir(parents=True)
    made.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n", encoding="utf-8")
    folders = [ROOT, *(folder for path in (libtorch, libtorch / "torch/csrc/api/include", cuda_include(), tmp_path)
                       for folder in ("-isystem", path))]
    done = subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-DFMT_HEADER_ONLY=1",
                           "-I", *map(str, folders), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
