"""The command `layerpress` of an installed package: becomes the program, which prepares data with this interpreter."""

import os
import sys
from pathlib import Path


def main() -> None:
    program = Path(__file__).resolve().parent / "bin" / "layerpress"
    os.environ.setdefault("LAYERPRESS_PYTHON", sys.executable)
    os.execv(program, [str(program), *sys.argv[1:]])
