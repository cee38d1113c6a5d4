"""Runs clang-tidy over what changed, with the compile commands of a build folder. The changed sources of a room are one unit,
because most of clang-tidy's time goes to libtorch's headers.

    python check_tidy.py [--base COMMIT] [--build FOLDER]    what changed since COMMIT, and what is not committed
    python check_tidy.py FILE...                             these
    python check_tidy.py --all                               everything

Without --base: since the branch left origin's default branch, else since the last commit's parent. Of what changed, the sources
that changed most are read (--at-most); scripts/nightly reads all.
"""
import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES_AT_ONCE = 8  # bounds the memory and the time of one clang-tidy


def git(*words: str) -> str | None:
    """What git says, or None when it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


def base_commit() -> str | None:
    """The commit to compare with; None in a history of one commit, as in a shallow clone."""
    head = git("rev-parse", "HEAD")
    branched = git("merge-base", "HEAD", "origin/HEAD")
    return branched if branched and branched != head else git("rev-parse", "--verify", "--quiet", "HEAD~1")


def changed_files(base: str | None) -> list[Path]:
    """Files that differ from `base`, those with most changed lines first."""
    counts = (git("diff", "--numstat", "--no-renames", "--diff-filter=d", base or "HEAD") or "").splitlines()
    lines = {name: added + removed for added, removed, name in (
        (int(a), int(r), name) for a, r, name in (count.split("\t") for count in counts) if a != "-")}
    listed = sorted(lines, key=lambda name: -lines[name])
    listed += (git("ls-files", "--others", "--exclude-standard") or "").splitlines()
    return [Path(name) for name in listed]


def sources_of(files: list[Path]) -> list[Path]:
    """Sources to read; a header is read through the source of its name."""
    sources = [file.with_suffix(".cpp") for file in files if file.suffix in (".h", ".cpp")
               and file.parts[0] in ("layerpress", "tests")]
    return [source for source in dict.fromkeys(sources) if (ROOT / source).exists()]


def without_precompiled(command: str) -> list[str]:
    """A compiler's options without those that concern only g++ or the output."""
    words, options = shlex.split(command), []
    words = words[next(i for i, word in enumerate(words) if word.startswith("-")):]
    skip = 0
    for i, word in enumerate(words):
        if skip:
            skip -= 1
        elif word in ("-o", "-c", "-MF", "-MT", "-MQ") or (word == "-include" and "cmake_pch" in words[i + 1]):
            skip = 1
        elif word not in ("-MD", "-Winvalid-pch", "-fpch-preprocess", "-fopenmp", "-Werror"):
            options.append(word)
    return options


class Commands:
    """The compile commands of a build folder."""

    def __init__(self, build: Path):
        entries = json.loads((build / "compile_commands.json").read_text())
        self.by_file = {Path(entry["file"]): entry["command"] for entry in entries}
        self.by_target: dict[str, str] = {}
        for entry in entries:
            if written := re.search(r"/(\w+)\.dir/\S*\.o ", entry["command"]):
                self.by_target.setdefault(written[1], entry["command"])

    def of(self, source: Path) -> tuple[str, list[str]] | None:
        """The sources that are compiled together with this one, and the command; None for a source that this build does not compile."""
        if (ROOT / source) in self.by_file:
            return str(source), without_precompiled(self.by_file[ROOT / source])
        folder, room, *deeper = source.parts
        target = {"layerpress": f"layerpress_{room}", "tests": f"test_{room}_sources"}.get(folder)
        if target == "layerpress_cli":
            target = "layerpress_program"
        return (target, without_precompiled(self.by_target[target])) if deeper and target in self.by_target else None


def units(sources: list[Path], commands: Commands) -> tuple[list[tuple[list[Path], list[str]]], list[Path]]:
    """Sources that are read together with their options, and those that cannot be read here."""
    together: dict[str, tuple[list[Path], list[str]]] = {}
    foreign = []
    for source in sources:
        known = commands.of(source)
        if known is None:
            foreign.append(source)
        else:
            together.setdefault(known[0], ([], known[1]))[0].append(source)
    cut = [(files[i:i + FILES_AT_ONCE], options) for files, options in together.values()
           for i in range(0, len(files), FILES_AT_ONCE)]
    return cut, foreign


def check(files: list[Path], options: list[str]) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory() as folder:
        unit = Path(folder) / "unit.cpp"
        unit.write_text("".join(f'#include "{ROOT / file}"\n' for file in files))
        command = ["clang-tidy", "--quiet", "--warnings-as-errors=*", f"--config-file={ROOT / '.clang-tidy'}", str(unit), "--",
                   *options, "-Wno-everything"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    said = done.stdout if done.returncode in (0, 1) and "error: " in done.stdout else done.stdout + done.stderr
    return done.returncode == 0, "" if done.returncode == 0 else said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--base", default=os.environ.get("LAYERPRESS_BASE") or None)
    parser.add_argument("--at-most", type=int, default=24, help="sources to read of what changed")
    parser.add_argument("--build", type=Path, default=ROOT / "build")
    arguments = parser.parse_args()
    if arguments.all:
        files = [path.relative_to(ROOT) for folder in ("layerpress", "tests") for path in (ROOT / folder).rglob("*.cpp")]
    elif arguments.files:
        files = [path.resolve().relative_to(ROOT) for path in arguments.files]
    else:
        files = changed_files(arguments.base or base_commit())
    sources = sources_of(files)
    if not arguments.all and not arguments.files and len(sources) > arguments.at_most:
        print(f"tidy: {len(sources)} sources changed; {len(sources) - arguments.at_most} are left to scripts/nightly")
        sources = sources[:arguments.at_most]
    cut, foreign = units(sources, Commands(arguments.build.resolve()))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(lambda unit: check(*unit), cut))
    for _, said in results:
        if said:
            print(said, file=sys.stderr)
    faulty = sum(not well for well, _ in results)
    print(f"tidy: {len(sources) - len(foreign)} files in {len(cut)} units, {faulty} units with findings"
          + (f"; not compiled here: {', '.join(map(str, foreign))}" if foreign else ""))
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
