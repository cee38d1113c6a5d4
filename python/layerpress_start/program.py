"""The command `layerpress` of an installed package: becomes the program, which prepares data with this interpreter."""

import os
import sys

from . import installed_torch


def main() -> None:
    try:
        program = installed_torch.native_part("bin/layerpress-torch-{}")
    except ImportError as error:
        sys.exit(f"error: {error}")
    os.environ.setdefault("LAYERPRESS_PYTHON", sys.executable)
    os.environ.update(installed_torch.environment())
    os.execv(program, sys.argv)  # under its own name, which messages quote
