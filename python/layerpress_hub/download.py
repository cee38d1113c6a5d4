"""Fetches the files of a model that a run needs into the hub's cache."""

from __future__ import annotations

import fnmatch
import glob
import hashlib
import json
import re
import shutil
import threading
from pathlib import Path
from typing import Any, Callable, Iterable, Optional

from layerpress_frame.faults import Fault
from layerpress_frame.program import Report

from .errors import LOG_IN, explained, patiently, strange_answer

SINGLE_FILE, INDEX = "model.safetensors", "model.safetensors.index.json"
# Beside the weights: config, tokenizer, processor, chat template, code, card and license.
COMPANIONS = ("*.json", "*.txt", "*.model", "*.jinja", "*.tiktoken", "*.py", "README.md", "LICENSE*", "NOTICE*")
OTHER_WEIGHTS = (".bin", ".pth", ".pt", ".gguf", ".h5", ".msgpack", ".ckpt", ".onnx")


class DownloadFault(Fault):
    def __init__(self, text: str):
        super().__init__(text, "hub.download")


def download(model: str, revision: Optional[str], report: Report) -> dict[str, Any]:
    """Downloads what is not in the cache yet; a file that is there is not fetched again. Reports {"done", "total"} in bytes."""
    from huggingface_hub import HfApi, constants, errors, snapshot_download

    where = model + (f"@{revision}" if revision else "")
    if constants.HF_HUB_OFFLINE:
        return _cached(model, revision, where)
    _require_plain_blob_names(where)
    missing = f"the hub has no such model, or it is private; check the name, or {LOG_IN}"
    try:
        info = patiently(lambda: HfApi(library_name="layerpress").model_info(model, revision=revision, files_metadata=True))
    except Exception as fault:  # of the hub's client and of the network
        is_strange = isinstance(fault, (AttributeError, KeyError, TypeError, ValueError)) and not isinstance(fault, errors.HFValidationError)
        raise DownloadFault(f"{where}: {strange_answer(fault) if is_strange else explained(fault, missing)}") from None
    if info.siblings is None or not all(isinstance(file.size or 0, int) for file in info.siblings):
        raise DownloadFault(f"{where}: {strange_answer('it lists no files with sizes')}")
    try:
        files = {file.rfilename: file for file in info.siblings}
        names = needed_files(files, lambda name: _text_of(model, info.sha, name), where)
        sizes = {_blob_name(files[name]): files[name].size or 0 for name in names}
        cache = _blobs(model)
        new = [name for name in names if not (cache / _blob_name(files[name])).exists()]
        _require_space(cache, sizes, where)
        with _Progress(cache, sizes, report):
            patterns = [glob.escape(name) for name in names]
            folder = patiently(lambda: snapshot_download(model, revision=revision, allow_patterns=patterns, library_name="layerpress"))
            _check_places(Path(folder), names, cache, where)
            _check_arrived(Path(folder), {name: files[name] for name in new}, where)
    except DownloadFault:
        raise
    except Exception as fault:  # of the hub's client, of the network, of the disk
        raise DownloadFault(f"{where}: {explained(fault, missing)}; what has arrived is kept: the same command fetches the rest") from None
    if Path(folder).name != info.sha:
        raise DownloadFault(f"{where}: changed during the download; start again")
    return {"folder": folder, "files": len(names), "bytes": sum(sizes.values())}


def _cached(model: str, revision: Optional[str], where: str) -> dict[str, Any]:
    """What the cache has without asking the hub, if that is all that a run needs."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(snapshot_download(model, revision=revision, allow_patterns="config.json", local_files_only=True))
        files = {file.name: file for file in folder.iterdir() if file.exists()}
        names = needed_files(files, lambda name: files[name].read_text(encoding="utf-8"), where)
    except Exception as fault:  # of the hub's client, of the cache, or files that are not there
        reason = fault.args[0].removeprefix(f"{where}: ") if isinstance(fault, DownloadFault) else "the cache does not have it"
        raise DownloadFault(f"{where}: HF_HUB_OFFLINE is set, and {reason}; unset it to fetch what is missing") from None
    return {"folder": str(folder), "files": len(names), "bytes": sum(files[name].stat().st_size for name in names)}


def _require_plain_blob_names(where: str) -> None:
    """The client stores a file under a name from a header of the answer, which could lead out of the cache."""
    from huggingface_hub import file_download

    ask = file_download.get_hf_file_metadata

    def checked(*arguments: Any, **more: Any) -> Any:
        metadata = ask(*arguments, **more)
        for name in (metadata.etag, metadata.commit_hash):
            if name is not None and not re.fullmatch("[0-9A-Za-z_-]+", name):
                raise DownloadFault(f"{where}: {strange_answer('it names a stored file by something else than a checksum')}")
        return metadata

    file_download.get_hf_file_metadata = checked


def _check_places(folder: Path, names: Iterable[str], blobs: Path, where: str) -> None:
    """That what is read and perhaps removed lies in the model's own part of the cache."""
    own = blobs.parent.resolve()
    for name in names:
        if not (folder / name).resolve().is_relative_to(own):
            raise DownloadFault(f"{where}: in the cache, {name} is a link out of {own}; remove that folder and start again")


def _check_arrived(folder: Path, files: dict[str, Any], where: str) -> None:
    """Compares what was fetched with the hub's checksums; huggingface_hub compares sizes only."""
    damaged = [name for name, file in files.items() if not _is_intact(folder / name, file)]
    for name in damaged:
        (folder / name).resolve().unlink()
        (folder / name).unlink(missing_ok=True)
    if damaged:
        raise DownloadFault(f"{where}: {', '.join(damaged)} arrived damaged (the hub has another checksum) and was removed; the same command "
                            "fetches it again")


def _is_intact(path: Path, file: Any) -> bool:
    wanted = file.lfs.sha256 if file.lfs is not None else file.blob_id
    if wanted is None:
        return True
    if file.lfs is not None or len(wanted) == 64:
        digest = hashlib.sha256()
    else:  # git's name of a file
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as content:
        while block := content.read(1 << 22):
            digest.update(block)
    return digest.hexdigest() == wanted


def needed_files(files: Iterable[str], text_of: Callable[[str], str], where: str) -> list[str]:
    """The files at the top of the repository that make a checkpoint: its safetensors and what is beside them."""
    names = {name for name in files if "/" not in name}
    companions = [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in COMPANIONS)
                  and not name.endswith(".index.json")]
    if SINGLE_FILE in names:
        return sorted([*companions, SINGLE_FILE])
    if INDEX not in names:
        others = sorted(name for name in names if name.endswith((*OTHER_WEIGHTS, ".safetensors")))
        stored = f"its weights are in {', '.join(others[:4])}" if others else "it has no weights"
        raise DownloadFault(f"{where}: has neither {SINGLE_FILE} nor {INDEX}, {stored}; choose a model in safetensors")
    shards = _shards(text_of(INDEX), where)
    lost = sorted(shards - names)
    if lost:
        raise DownloadFault(f"{where}: {INDEX} names {lost[0]!r}, which the repository does not have; choose another revision")
    return sorted([*companions, INDEX, *shards])


def _shards(text: str, where: str) -> set[str]:
    try:
        shards = set(json.loads(text)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DownloadFault(f"{where}: {INDEX} does not map tensors to files; choose another revision") from None
    if not all(isinstance(name, str) for name in shards):
        raise DownloadFault(f"{where}: {INDEX} does not map tensors to files; choose another revision")
    return shards


def _text_of(model: str, commit: str, name: str) -> str:
    from huggingface_hub import hf_hub_download

    return Path(patiently(lambda: hf_hub_download(model, name, revision=commit, library_name="layerpress"))).read_text(encoding="utf-8")


def _blob_name(file: Any) -> str:
    return file.lfs.sha256 if file.lfs is not None else file.blob_id or file.rfilename


def _blobs(model: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser() / f"models--{model.replace('/', '--')}" / "blobs"


def _require_space(blobs: Path, sizes: dict[str, int], where: str) -> None:
    wanted = sum(size for name, size in sizes.items() if not (blobs / name).exists())
    place = next(folder for folder in (blobs, *blobs.parents) if folder.exists())
    free = shutil.disk_usage(place).free
    if wanted > free:
        raise DownloadFault(f"{where}: {wanted / 2**30:.1f} GiB must be fetched, but only {free / 2**30:.1f} GiB are free in {place}; "
                       "make room, or set HF_HUB_CACHE to a folder on another disk")


class _Progress:
    """Reports how much of the wanted files is in the cache, every second."""

    def __init__(self, blobs: Path, sizes: dict[str, int], report: Report):
        self._blobs, self._sizes, self._report = blobs, sizes, report
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        total = sum(self._sizes.values())
        self._report({"done": self._done(), "total": total})
        while not self._ended.wait(1):
            self._report({"done": self._done(), "total": total})

    def _done(self) -> int:
        """Files that are still arriving are named BLOB...incomplete."""
        arrived: dict[str, int] = {}
        try:
            for file in self._blobs.iterdir():
                name = file.name.split(".")[0]
                if name in self._sizes:
                    arrived[name] = max(arrived.get(name, 0), file.stat().st_size)
        except OSError:  # a file got its final name meanwhile
            pass
        return sum(min(size, self._sizes[name]) for name, size in arrived.items())
