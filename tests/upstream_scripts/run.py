"""Runs LLM Compressor's example scripts with Layerpress: `llmcompressor` becomes `layerpress` in their text, models and data are stand-ins,
and nothing else is changed.

    python run.py ENVIRONMENT [--examples FOLDER] [--cache FOLDER] [--only PATTERN] [--markdown FILE]

ENVIRONMENT is a virtual environment in which the wheel is installed. Without --examples, the examples come from the package of LLM
Compressor on the index. A script counts if it names no modifier that Layerpress lacks.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RELEASE = "0.14.0.1"
NAMES_WORK = re.compile(r"\b(oneshot|model_free_ptq)\b")
MODEL = re.compile(r"(?i)^\s*(?:model_?id|model)\s*=\s*\"([\w.-]+/[\w.-]+)\"", re.M)
TEMPLATE = re.compile(r"<[A-Z_]+>")
SECONDS = 420


class Result(NamedTuple):
    script: str
    ran: bool
    seconds: float
    message: str


def fetched_examples(python: Path, place: Path) -> Path:
    """The examples of the source distribution."""
    subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llmcompressor", "--dest", place,
                    f"llmcompressor=={RELEASE}"], check=True)
    with tarfile.open(next(place.glob("llmcompressor-*.tar.gz"))) as archive:
        archive.extractall(place, filter="data")
    return next(place.glob("llmcompressor-*/examples"))


def lacking(python: Path) -> list[str]:
    """The modifiers that Layerpress has not."""
    ask = "import json; from layerpress.native import TABLES; print(json.dumps([k['type'] for k in TABLES['modifiers'] if not k['implemented']]))"
    return json.loads(subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True).stdout)


def chosen(examples: Path, pattern: str, without: list[str]) -> list[Path]:
    scripts = []
    for path in sorted(examples.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "llmcompressor" in text and NAMES_WORK.search(text) and not any(name in text for name in without):
            if re.search(pattern, str(path.relative_to(examples))) and not TEMPLATE.search(text):
                scripts.append(path)
    return scripts


def models_of(scripts: list[Path]) -> list[str]:
    found = set()
    for path in scripts:
        found.update(MODEL.findall(path.read_text(encoding="utf-8")))
    return sorted(found)


class Machine:
    """Runs scripts with the stand-ins: in processes of a server that has loaded the large packages, or, of several ranks, by torchrun."""

    def __init__(self, python: Path, cache: Path, folder: Path):
        self._python, self._folder = python, folder
        self.environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"),
                            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE / "stand_in_machine"), os.environ.get("PYTHONPATH"))))}
        self._server = subprocess.Popen([python, HERE / "script_server.py"], env=self.environment, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def close(self) -> None:
        self._server.communicate()

    def run(self, path: Path, name: str) -> Result:
        with tempfile.TemporaryDirectory(prefix="layerpress-script-", dir=self._folder) as place:
            text = path.read_text(encoding="utf-8").replace("llmcompressor", "layerpress")
            script, log = Path(place) / path.name, Path(place) / "log.txt"
            script.write_text(text, encoding="utf-8")
            for beside in path.parent.glob("*.json"):
                shutil.copy(beside, place)
            start = time.monotonic()
            code = self._by_torchrun(script, log) if "init_dist" in text or "WORLD_SIZE" in text else self._by_server(script, log)
            message = "took too long" if code == -9 else last_words(log.read_text(errors="replace")) if code else ""
            return Result(name, code == 0, time.monotonic() - start, message)

    def _by_server(self, script: Path, log: Path) -> int:
        request = {"script": str(script), "folder": str(script.parent), "log": str(log), "seconds": SECONDS}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())["code"]

    def _by_torchrun(self, script: Path, log: Path) -> int:
        command = [self._python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
        try:
            with log.open("w") as stream:
                return subprocess.run(command, cwd=script.parent, env={**self.environment, "TMPDIR": str(script.parent)}, stdout=stream,
                                      stderr=subprocess.STDOUT, timeout=2 * SECONDS, check=False).returncode
        except subprocess.TimeoutExpired:
            return -9


def last_words(text: str) -> str:
    """The message of the exception that ended a script."""
    errors = [line for line in text.splitlines() if re.match(r"(\[rank\d\]: ?)?[\w.]*(Error|Exception|Interrupt)\b", line)]
    lines = [line for line in text.splitlines() if line.strip()]
    return re.sub(r"^\[rank\d\]: ?", "", errors[0] if "torch.distributed" in text and errors else (errors or lines or ["no message"])[-1])


def table(results: list[Result]) -> str:
    kinds: dict[str, list[Result]] = {}
    for result in results:
        kinds.setdefault(result.script.split("/")[0].removesuffix(".py"), []).append(result)
    lines = ["| scripts of | run | of | what stops the others |", "|---|---:|---:|---|"]
    for kind, group in kinds.items():
        others = "; ".join(f"`{Path(one.script).stem}`: {one.message}" for one in group if not one.ran)
        lines.append(f"| `{kind}` | {sum(one.ran for one in group)} | {len(group)} | {others.replace('|', '/')[:600]} |")
    ran = sum(one.ran for one in results)
    return "\n".join([*lines, f"| all | {ran} | {len(results)} | {100 * ran / max(1, len(results)):.0f} % run |"])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("environment", type=Path)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args()
    python = options.environment.absolute() / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        examples = options.examples or fetched_examples(python, Path(folder))
        cache = (options.cache or Path(folder) / "hub").absolute()
        scripts = chosen(examples, options.only, lacking(python))
        machine = Machine(python, cache, Path(folder))
        subprocess.run([python, HERE / "stand_in_models.py", cache, *models_of(scripts)], check=True, env=machine.environment,
                       stdout=subprocess.DEVNULL)
        results = []
        for path in scripts:
            results.append(machine.run(path, str(path.relative_to(examples))))
            last = results[-1]
            print(f"{'ran ' if last.ran else 'FAIL'} {last.seconds:5.0f} s  {last.script}  {last.message[:300]}", flush=True)
        machine.close()
    text = table(results)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    return 0 if sum(one.ran for one in results) >= 0.95 * len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
