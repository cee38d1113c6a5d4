"""scripts/check_commit_message.py: the form of a commit's message."""

import sys

import pytest
from support import program

sys.path.insert(0, str(program.REPOSITORY / "scripts"))
import check_commit_message


@pytest.mark.parametrize("message", ["cli: name the nearest option for a typo\n\nWhy.\n", "docs, scripts: list `decisions`\n# comment\n",
                                     "Merge branch 'main'\n"])
def test_good_messages(message):
    assert check_commit_message.faults(message) == []


@pytest.mark.parametrize("message, fault", [("wip\n", "form"), ("cli: name options.\n", "form"), ("cli: " + "x" * 80, "85 characters"),
                                            ("cli: name options\nand more\n", "second line")])
def test_bad_messages(message, fault):
    [found] = check_commit_message.faults(message)
    assert fault in found
