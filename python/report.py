"""Writes a page about a run: one JSON request on stdin, one JSON summary on stdout.

    python -s report.py <<< '{"action": "draw", "summary": {...}, "output": "report.html"}'

README.md beside this file lists the fields of the request.
"""

import signal
import sys

from layerpress_report.command import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.stdin.buffer, sys.stdout, sys.stderr))
