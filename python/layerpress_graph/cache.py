"""Graphs of earlier requests, by everything that they depend on."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from importlib import metadata
from pathlib import Path

from .errors import ExportError
from .request import Request
from .tied_heads import own_heads

WITHOUT_EFFECT = ("quantization_config", "compression_config", "transformers_version", "_name_or_path")


def place_of(request: Request, config: dict, stored: dict) -> Path:
    """The folder that has, or will have, the graph of this request. A model and what it is compressed to have one graph."""
    digest = hashlib.sha256()
    relevant = {key: value for key, value in config.items() if key not in WITHOUT_EFFECT}
    facts = (relevant, sorted(stored.items()), own_heads(config, request.folder, stored))
    for part in (*(json.dumps(fact, sort_keys=True).encode() for fact in facts), request.dtype.encode(),
                 str(request.trust_remote_code).encode()):
        digest.update(hashlib.sha256(part).digest())
    for package in ("torch", "transformers"):
        digest.update(metadata.version(package).encode())
    sources = sorted(Path(__file__).parent.glob("*.py"))
    if request.trust_remote_code:
        sources += sorted(request.folder.glob("*.py"))
    for source in sources:
        digest.update(source.name.encode() + hashlib.sha256(source.read_bytes()).digest())
    return request.cache_folder / digest.hexdigest()[:32]


def require_writable(folder: Path) -> None:
    """Raises ExportError if graphs cannot be kept there, which is better known before the export than after it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as fault:
        raise ExportError(f"the folder for exported graphs, {folder}, cannot be written ({fault.strerror}): "
                          "set XDG_CACHE_HOME to a folder that can") from None


def write(folder: Path, graph: dict, constants: dict) -> None:
    """Writes graph.json and constants.safetensors."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: value.clone() for name, value in constants.items()}, folder / "constants.safetensors")
    (folder / "graph.json").write_text(json.dumps(graph, allow_nan=False), encoding="utf-8")


def store(place: Path, graph: dict, constants: dict) -> None:
    """Writes both files beside their place; the folder appears when it is complete."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".unfinished-") as folder:
        finished = Path(folder) / "graph"
        write(finished, graph, constants)
        try:
            os.replace(finished, place)
        except OSError:
            if not place.is_dir():  # else another process was faster, with the same graph
                raise
