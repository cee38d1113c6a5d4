"""Adds up JUnit reports and prints `N passed, N failed`; fails when a report is missing, empty or has failures.

    python count_tests.py REPORT.xml...
"""
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    skipped = case.find("skipped")
    # CTest also calls a test skipped whose program is missing; only the reasons SKIP_... are a test's own decision.
    if case.get("status") == "notrun" and (skipped is None or not skipped.get("message", "").startswith("SKIP_")):
        return "failed"
    return "skipped" if skipped is not None or case.get("status") == "disabled" else "passed"


def count(path: Path) -> dict[str, int]:
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        print(f"error: [test.count] {path}: {error}; the tests that write it did not run to their end", file=sys.stderr)
        cases = []
    if not cases:
        counts["failed"] = 1
    for case in cases:
        counts[outcome(case)] += 1
    return counts


def main() -> int:
    reports = [count(Path(path)) for path in sys.argv[1:]]
    passed, failed, skipped = (sum(report[key] for report in reports) for key in ("passed", "failed", "skipped"))
    if skipped:
        print(f"{skipped} skipped")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
