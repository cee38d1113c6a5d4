"""Which library a program takes its C++ library from."""
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
@pytest.mark.parametrize("program", ["layerpress-program", "test_base"])
def test_the_cpp_library_comes_before_libtorch(program: str):
    """libtorch exports a part of std::filesystem; in the one for CUDA it crashes when a program calls it."""
    dynamic = subprocess.run(["readelf", "-d", str(ROOT / "build" / program)], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.*?)\]", dynamic)
    torch = min(needed.index(name) for name in needed if "torch" in name or "c10" in name)
    assert needed.index("libstdc++.so.6") < torch, needed
