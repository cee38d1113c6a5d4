"""scripts/check_docs.py finds dead links and records of decisions that lack their form."""

import sys

import pytest
from support import program

sys.path.insert(0, str(program.REPOSITORY / "scripts"))
import check_docs

RECORD = "# 0001. Title\n\n- Date: 2026-11-21\n- Status: accepted\n\n## Context\n\n## Decision\n\n## Consequences\n"


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "docs" / "decisions"
    folder.mkdir(parents=True)
    (folder / "0001-title.md").write_text(RECORD)
    (tmp_path / "docs" / "design.md").write_text("## The `x` way, twice\n\n- [Title](decisions/0001-title.md)\n")
    return tmp_path


def faults(root, name=None, text=None):
    if name:
        (root / name).write_text(text)
    return check_docs.faults(root, sorted(root.rglob("*.md")))


def test_sound_documents(documents):
    links = "[a](docs/design.md#the-x-way-twice) [b](#here) `[c](nowhere.md)` [d](https://example.com/x)\n\n# Here\n\n    [e](nowhere.md)\n"
    assert faults(documents, "README.md", links) == []


@pytest.mark.parametrize("link", ["docs/other.md", "docs/design.md#the-way", "#there"])
def test_dead_links(documents, link):
    found = faults(documents, "README.md", f"# Here\n\n[a]({link})\n")
    assert len(found) == 1 and "README.md" in found[0] and link in found[0]


@pytest.mark.parametrize("text", [RECORD.replace("accepted", "liked"), RECORD.replace("2026-11-21", "yesterday"),
                                  RECORD.replace("## Decision\n", ""), RECORD.replace("0001", "0002")])
def test_records_without_their_form(documents, text):
    found = faults(documents, "docs/decisions/0001-title.md", text)
    assert len(found) == 1 and "not the form" in found[0]


def test_records_are_consecutive_and_listed_once(documents):
    found = faults(documents, "docs/decisions/0003-more.md", RECORD.replace("0001", "0003"))
    assert any("expected 0002" in fault for fault in found) and any("listed 0 times" in fault for fault in found)
