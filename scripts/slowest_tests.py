"""Prints the ten slowest tests of JUnit reports.

    python slowest_tests.py REPORT.xml...
"""
import sys
import xml.etree.ElementTree as ElementTree

SHOWN = 10


def main() -> int:
    cases = [(float(case.get("time", 0)), f"{case.get('classname')}.{case.get('name')}")
             for path in sys.argv[1:] for case in ElementTree.parse(path).iter("testcase")]
    print("slowest tests:")
    for seconds, name in sorted(cases, reverse=True)[:SHOWN]:
        print(f"{seconds:8.1f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
