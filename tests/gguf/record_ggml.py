"""Writes ggml_checksums.json: what test_blocks.py expects, from the bytes that ggml makes (scripts/setup --llama).

    PYTHONPATH=tests:tests/gguf LAYERPRESS_PROGRAM=build/layerpress .venv/bin/python tests/gguf/record_ggml.py
"""

import json
import tempfile

from support import ggml
from test_blocks import CHECKSUMS, frozen_checksums

with tempfile.TemporaryDirectory() as folder:
    CHECKSUMS.write_text(json.dumps(frozen_checksums(folder, ggml.rounded), indent=1) + "\n", encoding="utf-8")
