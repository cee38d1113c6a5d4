#!/usr/bin/env python3
"""Runs recipes of grid.py through LLM Compressor and gives each result to `layerpress verify --source`.

    scripts/setup --peer
    .venv-peer/bin/python tests/conformance/verify_peer.py LAYERPRESS [NAME ...]

Prints a line for each result with a fault, and the counts. The exit code is 1 if there is one.
"""

import contextlib
import io
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from record_peer import compress, grid, save_model, torch


def verified(program, folder, recipe, output):
    """The answer of verify, or None where LLM Compressor refuses the recipe or leaves the model as it is."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            compress(folder, recipe, output)
    except Exception:  # whatever it raises, the recipe was refused
        return None
    if "quantization_config" not in json.loads((output / "config.json").read_text()):
        return None
    done = subprocess.run([program, "verify", output, "--source", folder, "--json"], capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout else {"faults": [done.stderr.strip()]}


def main(program, *names):
    import loguru

    torch.set_num_threads(1)
    recipes = grid.recipes()
    accepted, faulty, warned, without = 0, 0, 0, 0
    with tempfile.TemporaryDirectory() as parent:
        folder = save_model(Path(parent) / "model")
        for name in names or recipes:
            loguru.logger.remove()
            with tempfile.TemporaryDirectory() as output:
                found = verified(program, folder, recipes[name], Path(output))
            without += found is None
            accepted += found is not None and not found["faults"]
            warned += found is not None and bool(found.get("warnings"))
            if found and found["faults"]:
                faulty += 1
                print(f"{name}: {found['faults']}", flush=True)
    print(f"{accepted} results accepted ({warned} with warnings), {faulty} with faults; {without} recipes without a result")
    sys.exit(faulty > 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
