"""The torch of this environment, found without importing it, and the native parts of this package that were built for it."""

import importlib.util
import os
import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "layerpress"


def folder() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("[python.torch] this environment has no torch; install it with pip")
    return Path(spec.submodule_search_locations[0]).resolve()


def version() -> str:
    """The minor version, such as "2.13": libtorch's binary interface is that of a minor version."""
    found = re.search(r"""^__version__ = ["'](\d+\.\d+)\.""", (folder() / "version.py").read_text(), re.MULTILINE)
    if found is None:
        raise ImportError(f"[python.torch] {folder() / 'version.py'} names no version; install torch again")
    return found[1]


def native_part(pattern: str) -> Path:
    """The file of this package that was built for the installed torch: {} in the pattern is its version."""
    part = PACKAGE / pattern.format(version())
    if not part.exists():
        served = sorted(re.findall(r"torch_(\d+\.\d+)\.abi3", " ".join(os.listdir(PACKAGE))))
        raise ImportError(f"[python.torch] torch {version()} is installed; this package serves {' and '.join(served)}; "
                          f"run pip install 'torch=={served[-1]}.*'" if served else "[python.torch] the package is incomplete; install it again")
    return part


def lies_beside() -> bool:
    """Whether torch is where the native parts look for its libraries."""
    return folder().parent == PACKAGE.parent


def make_loadable() -> None:
    """Loads torch's libraries from elsewhere, such as the folder of a system's packages, before the extension module asks for them."""
    if not lies_beside() and "torch" not in sys.modules:
        importlib.import_module("torch")


def environment() -> dict[str, str]:
    """What a program of this package needs to find torch's libraries elsewhere."""
    if lies_beside():
        return {}
    paths = [str(folder() / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
    return {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}
