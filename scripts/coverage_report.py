"""Prints which share of each room's lines the tests ran, and the ten files with most lines that none ran.

    python coverage_report.py SUMMARY.json    what gcovr --json-summary wrote
"""
import json
import sys
from collections import defaultdict
from pathlib import Path

SHOWN = 10


def main() -> int:
    files = json.loads(Path(sys.argv[1]).read_text())["files"]
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for file in files:
        parts = Path(file["filename"]).parts
        for name in (parts[1] if len(parts) > 2 else "public", "all"):
            rooms[name][0] += file["line_covered"]
            rooms[name][1] += file["line_total"]
    print(f"{'room':14} {'lines':>7} {'run':>7}")
    for name, (covered, total) in sorted(rooms.items(), key=lambda room: (room[0] == "all", room[0])):
        print(f"{name:14} {total:7} {covered / max(1, total):7.1%}")
    print("most lines that no test ran:")
    for file in sorted(files, key=lambda file: file["line_covered"] - file["line_total"])[:SHOWN]:
        print(f"{file['line_total'] - file['line_covered']:7}  {file['filename']}")
    return 0 if rooms else 1


if __name__ == "__main__":
    sys.exit(main())
