"""Runs tasks of lm-evaluation-harness on a checkpoint: one JSON request on stdin, one JSON summary on stdout.

    python -s run_tasks.py <<< '{"model": "DIR", "tasks": ["gsm8k"], "engine": "transformers"}'

README.md beside this file lists the fields of the request and of the summary.
"""

import signal
import sys

from layerpress_harness.command import main

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main(sys.stdin.buffer, sys.stdout, sys.stderr))
