"""Moves models between this machine and the Hugging Face hub: one JSON request on stdin, JSON lines on stdout.

    python -s hub.py <<< '{"action": "download", "model": "org/name"}'

README.md beside this file lists the fields of requests and answers.
"""

from layerpress_frame.program import run
from layerpress_hub.command import answer

if __name__ == "__main__":
    run("hub", answer)
