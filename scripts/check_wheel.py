"""Checks a wheel: its size, its parts, that it has native parts for exactly the versions of torch that it requires, and that its programs and
libraries need nothing from outside but torch and glibc.

    python check_wheel.py layerpress-….whl

The C++ library and libgcc count as torch's, which needs them from the system, too; so does a glibc at least as new as the one that the
wheel was built with.
"""
import importlib.util
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

LARGEST = 30e6
PARTS = ("layerpress/__init__.py", "layerpress/__init__.pyi", "layerpress/py.typed", "layerpress/_native.py", "layerpress_start/program.py",
         "layerpress/share/layerpress/python/prepare.py", "layerpress/share/layerpress/python/export_graph.py",
         "layerpress/share/layerpress/python/hub.py", "layerpress/share/layerpress/python/report.py",
         "layerpress/share/layerpress/python/run_tasks.py", "layerpress/share/layerpress/python/layerpress_frame/program.py",
         "layerpress/share/layerpress/python/layerpress_hub/download.py",
         "layerpress/share/layerpress/python/layerpress_report/charts.js")
NATIVE_PARTS = ("layerpress/_native_torch_{}.abi3.so", "layerpress/bin/layerpress-torch-{}", "layerpress/bin/layerpress-torch-{}-program")
GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
ALSO_OF_TORCH = {"libstdc++.so.6", "libgcc_s.so.1"}


def dynamic_entries(file: Path) -> tuple[set[str], list[str]]:
    """The libraries that an ELF file needs, and the folders of its run path."""
    text = subprocess.run(["readelf", "--dynamic", "--wide", file], capture_output=True, text=True, check=True).stdout
    run_path = re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text)
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", text)), run_path[0].split(":") if run_path else []


def newest(symbols: str, file: Path) -> tuple[int, ...]:
    """The newest version of a library's symbols that an ELF file asks for."""
    text = subprocess.run(["readelf", "--version-info", "--wide", file], capture_output=True, text=True, check=True).stdout
    return max((tuple(map(int, found.split("."))) for found in re.findall(rf"\b{symbols}_([0-9.]+)", text)), default=(0,))


def is_elf(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(4) == b"\x7fELF"


def versions_of_torch(metadata: str) -> set[str]:
    """The minor versions in the required range of torch."""
    lowest, major, end = re.search(r"^Requires-Dist: torch(?=.*>=(\d+\.\d+))(?=.*<(\d+)\.(\d+)).*$", metadata, re.MULTILINE).groups()
    return {f"{major}.{minor}" for minor in range(int(lowest.split(".")[1]), int(end))}


def part_faults(unpacked: Path) -> list[str]:
    metadata = next(unpacked.glob("*.dist-info/METADATA")).read_text()
    required = versions_of_torch(metadata)
    parts = {*PARTS, *(pattern.format(version) for pattern in NATIVE_PARTS for version in required)}
    found = [f"{part} is missing" for part in sorted(parts) if not (unpacked / part).exists()]
    built_for = {file.name.removeprefix("_native_torch_").removesuffix(".abi3.so") for file in unpacked.glob("layerpress/_native_torch_*")}
    return found + [f"it serves torch {version}, which it does not allow" for version in sorted(built_for - required)]


def faults(wheel: Path, unpacked: Path, torch: Path) -> list[str]:
    found = part_faults(unpacked)
    if wheel.stat().st_size > LARGEST:
        found.append(f"it has {wheel.stat().st_size / 1e6:.1f} MB, more than {LARGEST / 1e6:.0f}")
    of_torch = {file.name for file in (torch / "lib").iterdir()}
    for file in filter(is_elf, filter(Path.is_file, unpacked.rglob("*"))):
        name = file.relative_to(unpacked)
        needed, run_path = dynamic_entries(file)
        own = {other.name for folder in run_path for other in Path(folder.replace("$ORIGIN", str(file.parent))).glob("*.so*")}
        found += [f"{name} needs {library}" for library in sorted(needed - GLIBC - ALSO_OF_TORCH - of_torch - own)]
        found += [f"{name} looks for libraries in {folder}" for folder in run_path if not folder.startswith("$ORIGIN")]
        if needed & of_torch and not any((file.parent / folder.replace("$ORIGIN", ".")).resolve() == unpacked / "torch" / "lib"
                                         for folder in run_path):
            found.append(f"{name} does not look for torch's libraries beside the package")
    return found


def main() -> int:
    wheel = Path(sys.argv[1])
    torch = Path(importlib.util.find_spec("torch").submodule_search_locations[0])
    with tempfile.TemporaryDirectory() as folder:
        unpacked = Path(folder).resolve()
        zipfile.ZipFile(wheel).extractall(unpacked)
        found = faults(wheel, unpacked, torch)
        elf = [file for file in unpacked.rglob("*") if file.is_file() and is_elf(file)]
        versions = {name: max((newest(name, file) for file in elf), default=(0,)) for name in ("GLIBC", "GLIBCXX")}
    for fault in found:
        print(f"error: [wheel] {wheel.name}: {fault}", file=sys.stderr)
    print(f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, "
          f"needs {', '.join(name + ' ' + '.'.join(map(str, version)) for name, version in versions.items())}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
