"""Writes the graph that PyTorch exports of a checkpoint's model: one JSON request on stdin, one JSON summary on stdout.

    python -s export_graph.py <<< '{"model": "DIR", "dtype": "float32"}'

README.md beside this file lists the fields of the request, of the summary and of the file written.
"""

import signal
import sys

from layerpress_graph.command import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.stdin.buffer, sys.stdout, sys.stderr))
