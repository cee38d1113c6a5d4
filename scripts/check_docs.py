"""Checks the documents: links between files and to headings lead somewhere; records of decisions have their form and are listed."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORD = re.compile(r"# (\d{4})\. \S.*\n\n- Date: \d{4}-\d\d-\d\d\n- Status: (accepted|superseded by \[\d{4}\]\(\d{4}-[a-z0-9-]+\.md\))\n")
SECTIONS = ["Context", "Decision", "Consequences"]


def without_code(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def anchors(text):
    """The anchors that GitHub gives the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ +(.+?) *$", without_code(text), flags=re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = 0
        while (name if count == 0 else f"{name}-{count}") in found:
            count += 1
        found.add(name if count == 0 else f"{name}-{count}")
    return found


def links(text):
    prose = re.sub(r"`[^`\n]*`", "", without_code(text))
    return re.findall(r"\]\(([^()\s]+)\)", prose) + re.findall(r'(?:src|href)="([^"]+)"', prose)


def dead_links(root, pages):
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for link in links(text):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path) if path else page
            if not target.exists():
                yield f"{page.relative_to(root)}: {link} leads nowhere"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
                yield f"{page.relative_to(root)}: {link}: {target.name} has no such heading"


def faulty_records(root):
    folder = root / "docs" / "decisions"
    listed = re.findall(r"\]\(decisions/(\d{4}-[a-z0-9-]+\.md)\)", (root / "docs" / "design.md").read_text(encoding="utf-8"))
    records = sorted(page for page in folder.glob("*.md") if page.name != "README.md")
    for number, page in enumerate(records, 1):
        text = page.read_text(encoding="utf-8")
        form = RECORD.match(text)
        if not form or form[1] != page.name[:4] or re.findall(r"^## (.+)$", text, flags=re.MULTILINE) != SECTIONS:
            yield f"docs/decisions/{page.name}: not the form that docs/decisions/README.md describes"
        if page.name[:5] != f"{number:04d}-":
            yield f"docs/decisions/{page.name}: numbers are consecutive, expected {number:04d}"
        if listed.count(page.name) != 1:
            yield f"docs/decisions/{page.name}: listed {listed.count(page.name)} times in docs/design.md, expected once"


def faults(root, pages):
    return [*dead_links(root, pages), *faulty_records(root)]


def main():
    listing = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    pages = [ROOT / name for name in listing.splitlines() if (ROOT / name).exists()]
    found = faults(ROOT, pages)
    for fault in found:
        print(fault)
    print(f"check_docs: {len(pages)} pages, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
