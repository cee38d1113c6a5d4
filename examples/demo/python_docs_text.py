"""English prose from the Python language reference, which every Python installation contains, for the demo and tests.

    python python_docs_text.py FOLDER

writes FOLDER/calibration.jsonl and FOLDER/evaluation.jsonl, one {"text": passage} per line. The same Python version gives
the same files. No paragraph is in both: topics quote one another, so a paragraph belongs to the first topic that has it
(in order of name), and whole topics are held out for the evaluation.
"""
import re
import sys
from pathlib import Path
from pydoc_data.topics import topics

from passages import passages, write_lines

HELD_OUT_EVERY = 3         # every third topic is for the evaluation
CALIBRATION_PASSAGES = 32
EVALUATION_PASSAGES = 24

UNDERLINE = re.compile(r"^\s*([*=\-~^\"])\1{2,}\s*$")
TABLE_OR_RULE = re.compile(r"^\s*(\+[-=+]+\+|\|.*\||[=\-]{3,}(\s+[=\-]{3,})+)\s*$")
FOOTNOTE_MARK = re.compile(r"\s*\[\d+\](?=[\s.,;:)]|$)")
EMPHASIS = re.compile(r"(?<![\w*])\*{1,2}([^*\s](?:[^*]*[^*\s])?)\*{1,2}(?![\w*])")
LITERAL = re.compile(r"``([^`]+)``")
LIST_MARK = re.compile(r"^(?:[*\-•]|\d+\.|\(\d+\))\s+")
WORD = re.compile(r"^[\"'“(]*[A-Za-z][A-Za-z'’\-]*[\"'”),.;:?!]*$")
NOT_PROSE = ("::=", ">>>", " # ", "Changed in version", "New in version", "Added in version", "Deprecated since")


def clean(paragraph: str) -> str:
    """One paragraph of reStructuredText as a line of plain text."""
    text = " ".join(paragraph.split())
    text = LIST_MARK.sub("", text)
    text = EMPHASIS.sub(r"\1", LITERAL.sub(r"\1", text))
    return FOOTNOTE_MARK.sub("", text).strip()


def is_prose(text: str) -> bool:
    """Whether a cleaned paragraph consists of sentences and is not code, grammar, a signature or a table."""
    words = text.split()
    if len(words) < 10 or text[-1] not in ".:!?)" or any(mark in text for mark in NOT_PROSE):
        return False
    return sum(1 for word in words if WORD.match(word)) >= 0.7 * len(words)


def paragraphs_of(topic: str) -> list[str]:
    """The prose paragraphs of one topic, without headings, tables and code."""
    paragraphs = []
    for block in re.split(r"\n\s*\n", topic):
        lines = block.splitlines()
        if any(UNDERLINE.match(line) or TABLE_OR_RULE.match(line) for line in lines):
            continue
        text = clean(block)
        if text and is_prose(text):
            paragraphs.append(text)
    return paragraphs


def split_paragraphs() -> tuple[list[str], list[str]]:
    """All paragraphs, divided into (calibration, evaluation)."""
    calibration, evaluation, seen = [], [], set()
    for index, name in enumerate(sorted(topics)):
        fresh = [text for text in dict.fromkeys(paragraphs_of(topics[name])) if text not in seen]
        seen.update(fresh)
        (evaluation if index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else calibration).extend(fresh)
    return calibration, evaluation


def calibration_and_evaluation() -> tuple[list[str], list[str]]:
    """Passages for calibration, and different ones for evaluation."""
    calibration, evaluation = map(passages, split_paragraphs())
    for purpose, found, needed in (("calibration", calibration, CALIBRATION_PASSAGES),
                                   ("evaluation", evaluation, EVALUATION_PASSAGES)):
        if len(found) < needed:
            raise ValueError(f"[demo.text] the documentation of Python {sys.version.split()[0]} gives {len(found)} "
                             f"passages for {purpose}, {needed} are needed; run with another Python 3")
    return calibration, evaluation


def write_files(folder: Path) -> tuple[Path, Path]:
    """Writes both files and returns their paths."""
    calibration, evaluation = calibration_and_evaluation()
    paths = folder / "calibration.jsonl", folder / "evaluation.jsonl"
    write_lines(paths[0], calibration)
    write_lines(paths[1], evaluation)
    return paths


def main() -> int:
    if len(sys.argv) != 2:
        print("error: usage: python_docs_text.py FOLDER", file=sys.stderr)
        return 2
    try:
        calibration, evaluation = write_files(Path(sys.argv[1]))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {calibration} and {evaluation}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
