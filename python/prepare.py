"""Turns a calibration dataset into token ids: one JSON request on stdin, one JSON summary on stdout.

    python -s prepare.py <<< '{"model": "DIR", "dataset": "FILE or ID", "output": "samples.safetensors"}'

README.md beside this file lists the fields of the request, of the summary and of the file written.
"""

import signal
import sys

from layerpress_data.command import main

if __name__ == "__main__":
    # So that a terminated run, too, removes its unfinished file.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.stdin.buffer, sys.stdout, sys.stderr))
