"""Checks that the packages pinned in a requirements file are installed in this environment, without importing them.

    python check_requirements.py requirements.txt
"""
import importlib.metadata
import sys
from pathlib import Path


def pins(path: str) -> dict[str, str]:
    lines = (line.split("#")[0].strip() for line in Path(path).read_text().splitlines())
    return dict(line.split("==", 1) for line in lines if "==" in line)


def fault(name: str, version: str) -> str | None:
    """The fault of an installed package, or None."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return f"{name} is not installed"
    # A local build (2.13.0+cpu) satisfies the pin of its public version.
    if version not in (distribution.version, distribution.version.split("+")[0]):
        return f"{name} is {distribution.version}, {version} is pinned"
    # Metadata may outlive the files of an interrupted or half-deleted installation.
    modules = [file for file in distribution.files or () if file.name == "__init__.py" and len(file.parts) == 2]
    if any(not distribution.locate_file(file).exists() for file in modules):
        return f"{name} is there in part only"
    return None


def main() -> int:
    faults = [text for name, version in pins(sys.argv[1]).items() if (text := fault(name, version))]
    if faults:
        print(f"error: [setup.python] {'; '.join(faults)}; delete {sys.prefix} and run scripts/setup again",
              file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
