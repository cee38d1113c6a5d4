"""Writes the graph that PyTorch exports of a checkpoint's model: one JSON request on stdin, one JSON summary on stdout.

    python -s export_graph.py <<< '{"model": "DIR", "dtype": "float32"}'

README.md beside this file lists the fields of the request, of the summary and of the file written.
"""

from layerpress_frame.program import run
from layerpress_graph.command import answer

if __name__ == "__main__":
    run("graph.export", answer)
