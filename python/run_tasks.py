"""Runs tasks of lm-evaluation-harness on a checkpoint: one JSON request on stdin, one JSON summary on stdout.

    python -s run_tasks.py <<< '{"model": "DIR", "tasks": ["gsm8k"], "engine": "transformers"}'

README.md beside this file lists the fields of the request and of the summary.
"""

from layerpress_frame.program import run
from layerpress_harness.command import answer

if __name__ == "__main__":
    run("eval.tasks", answer)
