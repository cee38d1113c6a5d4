"""Uploads a finished checkpoint."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from glob import escape
from pathlib import Path
from typing import Any

from layerpress_frame.faults import Fault
from layerpress_frame.program import Report

from .errors import LOG_IN, explained, patiently

PLACE = "hub.push"


def check(repository: str, report: Report) -> dict[str, Any]:
    """Whether there is an access token that the hub knows. Before the work, because an upload comes hours later."""
    from huggingface_hub import HfApi

    try:
        return {"user": patiently(HfApi(library_name="layerpress").whoami).get("name", "")}
    except Exception as fault:  # of the hub's client and of the network
        raise Fault(f"{repository}: {explained(fault, '')}; nothing was done", PLACE) from None


def replaced(folder: str) -> list[str]:
    """Patterns for what an earlier upload of such a folder consists of: weights, or the parts of the same GGUF file."""
    parts = {re.sub(r"-\d{5}-of-\d{5}\.gguf$", "-*-of-*.gguf", file.name) for file in Path(folder).glob("*.gguf")}
    return sorted(parts) or ["*.safetensors", "*.safetensors.index.json"]


def stale(files: list[str], folder: str) -> list[str]:
    """Patterns for the files of a repository that may be of an earlier upload. Those in folders are somebody else's: an adapter, perhaps."""
    patterns = replaced(folder)
    return [escape(name) for name in files if "/" not in name and any(fnmatch(name, pattern) for pattern in patterns)]


def upload(folder: str, repository: str, private: bool, report: Report) -> dict[str, Any]:
    """Makes the repository where there is none, and uploads the folder, or the file beside those that are there. Weight files of an
    earlier upload that the folder does not have are deleted, because readers would take them for a part of the model."""
    from huggingface_hub import HfApi

    api = HfApi(library_name="layerpress")
    message = "Upload a model compressed by Layerpress"
    try:
        patiently(lambda: api.create_repo(repository, private=private, exist_ok=True))
        if Path(folder).is_file():
            patiently(lambda: api.upload_file(repo_id=repository, path_or_fileobj=folder, path_in_repo=Path(folder).name, commit_message=message))
        else:
            earlier = stale(patiently(lambda: api.list_repo_files(repository)), folder)
            patiently(lambda: api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message, delete_patterns=earlier))
    except Exception as fault:  # of the hub's client, of the network, of the disk
        missing = f"the hub refuses access to the repository; {LOG_IN}, with a token that may write"
        raise Fault(f"{repository}: {explained(fault, missing)}", PLACE) from None
    return {"address": f"{api.endpoint}/{repository}"}
