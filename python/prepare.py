"""Turns a calibration dataset into token ids: one JSON request on stdin, one JSON summary on stdout.

    python -s prepare.py <<< '{"model": "DIR", "dataset": "FILE or ID", "output": "samples.safetensors"}'

README.md beside this file lists the fields of the request, of the summary and of the file written.
"""

from layerpress_data.command import answer
from layerpress_frame.program import run

if __name__ == "__main__":
    run("data.prepare", answer)
