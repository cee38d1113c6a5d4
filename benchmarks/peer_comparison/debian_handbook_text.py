"""English prose from the Debian package `debian-handbook`, which anyone can get to reproduce the figures.

The installed package is used when its files are there; otherwise the package is downloaded with apt-get, without being
installed, and unpacked. The same version of the package gives the same files.
"""
import subprocess
from html.parser import HTMLParser
from pathlib import Path

from passages import passages, write_lines

HTML = Path("usr/share/doc/debian-handbook/html/en-US")
HELD_OUT_EVERY = 5  # every fifth page is for the evaluation
SHORTEST_PARAGRAPH = 40


class HandbookError(Exception):
    """The text is not available; the message says why and what to do."""


class ParagraphReader(HTMLParser):
    """Collects the text of every <div class="para">, without code listings and nested paragraphs."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.paragraphs: list[str] = []
        self._open: list[list[str] | None] = []  # one entry per open <div>: its pieces if it is a paragraph
        self._listings = 0

    def handle_starttag(self, tag, attributes) -> None:
        if tag == "div":
            self._open.append([] if dict(attributes).get("class") == "para" else None)
        elif tag == "pre":
            self._listings += 1

    def handle_endtag(self, tag) -> None:
        if tag == "pre":
            self._listings = max(0, self._listings - 1)
        elif tag == "div" and self._open:
            pieces = self._open.pop()
            text = " ".join("".join(pieces or []).split())
            if len(text) >= SHORTEST_PARAGRAPH:
                self.paragraphs.append(text)

    def handle_data(self, data) -> None:
        if self._open and self._open[-1] is not None and not self._listings:
            self._open[-1].append(data)


def html_folder(scratch: Path) -> Path:
    """The handbook's pages: installed, unpacked by an earlier run, or downloaded now."""
    for folder in (Path("/") / HTML, scratch / HTML):
        if (folder / "index.html").exists():
            return folder
    scratch.mkdir(parents=True, exist_ok=True)
    download = subprocess.run(["apt-get", "download", "-qq", "debian-handbook"], cwd=scratch,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
    archives = sorted(scratch.glob("debian-handbook_*.deb"))
    if download.returncode != 0 or not archives:
        reason = (download.stderr.strip().splitlines() or ["nothing arrived"])[-1]
        raise HandbookError(f"[compare.text] debian-handbook could not be downloaded ({reason}); "
                            "run apt-get update, or give --calibration and --evaluation")
    subprocess.run(["dpkg-deb", "--extract", str(archives[-1]), str(scratch)], check=True)
    return scratch / HTML


def read_paragraphs(page: Path) -> list[str]:
    reader = ParagraphReader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader.paragraphs


def write_files(folder: Path) -> tuple[Path, Path]:
    """Writes calibration.jsonl and evaluation.jsonl and returns their paths; whole pages are held out."""
    split: tuple[list[str], list[str]] = ([], [])
    for index, page in enumerate(sorted(html_folder(folder / "package").glob("*.html"))):
        split[index % HELD_OUT_EVERY == HELD_OUT_EVERY - 1].extend(read_paragraphs(page))
    seen = set(split[0])
    evaluation = [text for text in dict.fromkeys(split[1]) if text not in seen]
    paths = folder / "calibration.jsonl", folder / "evaluation.jsonl"
    write_lines(paths[0], passages(list(dict.fromkeys(split[0]))))
    write_lines(paths[1], passages(evaluation))
    return paths
