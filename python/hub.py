"""Moves models between this machine and the Hugging Face hub: one JSON request on stdin, JSON lines on stdout.

    python -s hub.py <<< '{"action": "download", "model": "org/name"}'

README.md beside this file lists the fields of requests and answers.
"""

import signal
import sys

from layerpress_hub.command import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.stdin.buffer, sys.stdout, sys.stderr))
