"""Checks a commit's message: `room: what changes`, imperative, at most 72 characters, then an empty line and the reason.

    python scripts/check_commit_message.py FILE
"""

import re
import sys
from pathlib import Path

LONGEST = 72
SUBJECT = re.compile(r"[a-z][a-z0-9_./, -]*: [a-z0-9`\"'-].*[^.]$", re.IGNORECASE)
OF_GIT = ("Merge ", "Revert ", "fixup! ", "squash! ")


def faults(message: str) -> list[str]:
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0] if lines else ""
    if subject.startswith(OF_GIT):
        return []
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters; at most {LONGEST}")
    if not SUBJECT.match(subject):
        found.append("the subject is not of the form `room: what changes`, such as `cli: name the nearest option for a typo`")
    if len(lines) > 1 and lines[1].strip():
        found.append("the second line is not empty")
    return found


def main() -> int:
    found = faults(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for fault in found:
        print(f"error: [commit] {fault}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
