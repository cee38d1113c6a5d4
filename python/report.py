"""Writes a page about a run: one JSON request on stdin, one JSON summary on stdout.

    python -s report.py <<< '{"action": "draw", "summary": {...}, "output": "report.html"}'

README.md beside this file lists the fields of the request.
"""

from layerpress_frame.program import run
from layerpress_report.command import answer

if __name__ == "__main__":
    run("report", answer)
