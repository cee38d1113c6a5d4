"""Runs LLM Compressor's example scripts with Layerpress: `llmcompressor` becomes `layerpress` in their text, models and data are stand-ins,
and nothing else is changed.

    python run.py ENVIRONMENT [--examples FOLDER] [--cache FOLDER] [--only PATTERN] [--results FOLDER] [--continue] [--document FILE]
                  [--minutes NUMBER] [--limit SECONDS]

ENVIRONMENT is a virtual environment in which the wheel is installed. Without --examples, the examples come from the package of LLM
Compressor on the index. A script counts if it names no modifier that Layerpress lacks. --document writes the table between the marks
of a document, such as docs/python.md, after each script. --results keeps each result in a folder, with the output of scripts that failed:
another run with the same folder replaces the results of the scripts that it runs, and with --continue runs only those without one. After
--minutes no further script starts, and the table says how many did. --limit: what a script may take, which a busy machine needs more of.
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
from datetime import datetime
from pathlib import Path
from typing import NamedTuple, Optional

from known_failures import REASONS

HERE = Path(__file__).resolve().parent
RELEASE = "0.14.0.1"
NAMES_WORK = re.compile(r"\b(oneshot|model_free_ptq)\b")
MODEL = re.compile(r"(?i)^\s*(?:model_?id|model)\s*=\s*\"([\w.-]+/[\w.-]+)\"", re.M)
TEMPLATE = re.compile(r"<[A-Z_]+>")


class Result(NamedTuple):
    script: str
    ran: bool
    seconds: float
    message: str
    run: str = ""  # when the run that it is of began


class Results:
    """Those of this run and, if they are kept in a folder, of earlier ones: a line of JSON for each script, and its output if it failed."""

    def __init__(self, folder: Optional[Path]):
        self._folder = folder
        self._run = datetime.now().isoformat(timespec="seconds")
        self._of: dict[str, Result] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            lines = self._file.read_text(encoding="utf-8").splitlines() if self._file.exists() else []
            self._of = {one.script: one for one in (Result(**json.loads(line)) for line in lines)}

    @property
    def _file(self) -> Path:
        return self._folder / "results.jsonl"

    def all(self, scripts: list[str]) -> list[Result]:
        return [self._of[script] for script in scripts if script in self._of]

    def add(self, result: Result, log: str) -> None:
        self._of[result.script] = result = result._replace(run=self._run)
        if self._folder is None:
            return
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result._asdict()) + "\n")
        output = self._folder / (result.script.replace("/", ".") + ".log")
        output.unlink(missing_ok=True)
        if not result.ran:
            output.write_text(log, encoding="utf-8")


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


def chosen(examples: Path, without: list[str]) -> list[Path]:
    scripts = []
    for path in sorted(examples.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "llmcompressor" in text and NAMES_WORK.search(text) and not any(name in text for name in without):
            if not TEMPLATE.search(text):
                scripts.append(path)
    return scripts


def models_of(scripts: list[Path]) -> list[str]:
    found = set()
    for path in scripts:
        found.update(MODEL.findall(path.read_text(encoding="utf-8")))
    return sorted(found)


class Machine:
    """Runs scripts with the stand-ins: in processes of a server that has loaded the large packages, or, of several ranks, by torchrun."""

    def __init__(self, python: Path, cache: Path, folder: Path, limit: float):
        self._python, self._folder, self._limit = python, folder, limit
        self.environment = {**os.environ, "HF_HUB_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "home"),
                            "PYTHONPATH": os.pathsep.join(filter(None, (str(HERE / "stand_in_machine"), os.environ.get("PYTHONPATH"))))}
        self._server = subprocess.Popen([python, HERE / "script_server.py"], env=self.environment, text=True, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE)

    def close(self) -> None:
        self._server.communicate()

    def run(self, path: Path, name: str) -> tuple[Result, str]:
        """The result, and what the script wrote."""
        with tempfile.TemporaryDirectory(prefix="layerpress-script-", dir=self._folder) as place:
            text = path.read_text(encoding="utf-8").replace("llmcompressor", "layerpress")
            script, log = Path(place) / path.name, Path(place) / "log.txt"
            script.write_text(text, encoding="utf-8")
            for beside in path.parent.glob("*.json"):
                shutil.copy(beside, place)
            start = time.monotonic()
            code = self._by_torchrun(script, log) if "init_dist" in text or "WORLD_SIZE" in text else self._by_server(script, log)
            output = log.read_text(errors="replace")
            message = "took too long" if code == -9 else last_words(output) if code else ""
            return Result(name, code == 0, time.monotonic() - start, message), output

    def _by_server(self, script: Path, log: Path) -> int:
        request = {"script": str(script), "folder": str(script.parent), "log": str(log), "seconds": self._limit}
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        return json.loads(self._server.stdout.readline())["code"]

    def _by_torchrun(self, script: Path, log: Path) -> int:
        command = [self._python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
        try:
            with log.open("w") as stream:
                return subprocess.run(command, cwd=script.parent, env={**self.environment, "TMPDIR": str(script.parent)}, stdout=stream,
                                      stderr=subprocess.STDOUT, timeout=2 * self._limit, check=False).returncode
        except subprocess.TimeoutExpired:
            return -9


def last_words(text: str) -> str:
    """The message of the exception that ended a script."""
    errors = [line for line in text.splitlines() if re.match(r"(\[rank\d\]: ?)?[\w.]*(Error|Exception|Interrupt)\b", line)]
    lines = [line for line in text.splitlines() if line.strip()]
    return re.sub(r"^\[rank\d\]: ?", "", errors[0] if "torch.distributed" in text and errors else (errors or lines or ["no message"])[-1])


def reason(result: Result) -> str:
    known = REASONS.get(result.script)
    return f"{Path(result.script).stem}: {known.words if known else f'`{result.message[:200]}`'}".replace("|", "/")


def possible(results: list[Result]) -> list[Result]:
    """Without those that fail here for reasons of their own."""
    return [one for one in results if one.ran or one.script not in REASONS or REASONS[one.script].here]


def share(results: list[Result]) -> float:
    return sum(one.ran for one in results) / max(1, len(possible(results)))


def table(results: list[Result], scripts: int) -> str:
    kinds: dict[str, list[Result]] = {}
    for result in results:
        kinds.setdefault(result.script.split("/")[0].removesuffix(".py"), []).append(result)
    ran, counted = sum(one.ran for one in results), len(possible(results))
    started = f"all {scripts}" if len(results) == scripts else f"{len(results)} of {scripts}"
    runs = len({one.run for one in results})
    manner = "in one go" if runs == 1 else f"in {runs} runs"
    lines = [f"The last run started {started} examples, {manner}: {ran} ran, which is {100 * share(results):.1f} % of the {counted} that can "
             "run here.", "",
             "| examples of | run | of | why the others do not |", "|---|---:|---:|---|"]
    for kind, group in kinds.items():
        others = "; ".join(reason(one) for one in group if not one.ran)
        lines.append(f"| `{kind}` | {sum(one.ran for one in group)} | {len(group)} | {others} |")
    return "\n".join(lines)


def write_between_marks(document: Path, text: str) -> None:
    first, last = "<!-- scripts: tests/upstream_scripts/run.py writes this -->\n", "<!-- /scripts -->\n"
    before, found, rest = document.read_text(encoding="utf-8").partition(first)
    _, ended, after = rest.partition(last)
    if not found or not ended:
        raise SystemExit(f"error: [scripts.document] {document}: has no lines {first.strip()} and {last.strip()}")
    document.write_text(f"{before}{first}\n{text}\n\n{last}{after}", encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("environment", type=Path)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--continue", dest="continues", action="store_true")
    parser.add_argument("--document", type=Path)
    parser.add_argument("--limit", type=float, default=420)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    python = options.environment.absolute() / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        examples = options.examples or fetched_examples(python, Path(folder))
        cache = (options.cache or Path(folder) / "hub").absolute()
        scripts = {str(path.relative_to(examples)): path for path in chosen(examples, lacking(python))}
        results = Results(options.results)
        done = {one.script for one in results.all(list(scripts))} if options.continues else set()
        wanted = {name: path for name, path in scripts.items() if re.search(options.only, name) and name not in done}
        machine = Machine(python, cache, Path(folder), options.limit)
        subprocess.run([python, HERE / "stand_in_models.py", cache, *models_of(list(wanted.values()))], check=True, env=machine.environment,
                       stdout=subprocess.DEVNULL)
        shown = list(scripts) if options.results else [name for name in scripts if name in wanted]
        end = time.monotonic() + 60 * options.minutes
        for name, path in wanted.items():
            if time.monotonic() > end:
                break
            last, output = machine.run(path, name)
            results.add(last, output)
            print(f"{'ran ' if last.ran else 'FAIL'} {last.seconds:5.0f} s  {last.script}  {last.message[:300]}", flush=True)
            if options.document:
                write_between_marks(options.document, table(results.all(shown), len(shown)))
        machine.close()
    found = results.all(shown)
    print(table(found, len(shown)))
    for one in found:
        if one.ran and one.script in REASONS:
            print(f"{one.script} runs: take it out of known_failures.py")
    return 0 if share(found) >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
