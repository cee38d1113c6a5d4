"""--report: the page about a run."""

import html.parser
import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from support import program

PYTHON = Path(__file__).resolve().parents[2] / "python"
needs_charts = pytest.mark.skipif(importlib.util.find_spec("vl_convert") is None, reason="vl-convert-python is not installed")


class Page(html.parser.HTMLParser):
    """The words of a page, and everything that a browser would fetch."""

    def __init__(self, text):
        super().__init__()
        self.words, self.fetched, self.tags = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data") and value]

    def handle_data(self, data):
        if self.tags[-1:] != ["template"]:  # the figures, which no reader sees
            self.words.append(data)


@needs_charts
def test_page_of_a_run(model, results, solving):
    page, summary = results / "run.html", results / "run.json"
    program.oneshot(model, results / "out", *solving, "--report", page, "--summary", summary)
    details = json.loads(summary.read_text())
    [rank] = details["ranks"]
    names = [section["name"] for section in rank["sections"]]
    assert [name for name in names if "layers" in name] == [f"model.layers.{layer}" for layer in range(3)]
    for section in rank["sections"]:
        assert section["start"] >= 0 and sum(section["phases"].values()) <= section["seconds"] + 1e-3
        assert section["planned_bytes"] <= details["plan"]["peak_bytes"]
    assert 0 < max(rank["memory"]["bytes"]) <= rank["peak_anonymous_bytes"]
    shown = Page(page.read_text())
    text = " ".join(shown.words)
    assert shown.fetched == [] and "script" not in shown.tags and not re.search(r"@import|url\((?!#)", page.read_text())
    names = re.findall(r'\bid="([^"]+)"', page.read_text())
    assert len(names) == len(set(names)) and set(re.findall(r"url\(#([^)]+)\)", page.read_text())) <= set(names)
    assert shown.tags.count("svg") == 5
    worst = max(details["modules"], key=lambda module: module["output_error"])
    assert worst["module"] in text and "4-bit int, group 32" in text and "GPTQModifier" in text
    assert "mlp.down_proj" in text and "model.layers.1" in text and "planned" in text and "solve" in text
    assert {file.name for file in results.iterdir()} == {"out", "run.html", "run.json"}


@needs_charts
def test_without_data(model, results, rounding):
    program.oneshot(model, results / "out", *rounding, "--report", results / "run.html")
    assert "calibration none" in " ".join(" ".join(Page((results / "run.html").read_text()).words).split())


@needs_charts
def test_evaluation_joins_the_page(model, results, samples, rounding):
    page = results / "run.html"
    out = program.oneshot(model, results / "out", *rounding, "--report", page)
    before = Page(page.read_text())
    figures = program.run("eval", out, "--dataset", samples, "--reference", model, "--report", page).json()
    after = Page(page.read_text())
    assert "Quality" not in before.words and "Quality" in after.words and f"{figures['perplexity']:.4g}" in after.words
    assert after.tags.count("svg") == before.tags.count("svg") + 1 and set(before.words) <= set(after.words)
    (results / "other.html").write_text("<p>other</p>")
    for name, fragment in (("none.html", "there is no such page"), ("other.html", "is no page that oneshot --report has drawn")):
        program.fails("eval", out, "--dataset", samples, "--report", results / name, fragments=["[report]", name, fragment])


@needs_charts
def test_refused_places(model, refused, rounding, results, tmp_path):
    refused(model, "--report", tmp_path / "none" / "run.html", *rounding, fragments=["[report]", "none/run.html", "folder"])
    refused(model, "--report", tmp_path, *rounding, fragments=["[report]", "is a folder"])


def test_missing_package(model, refused, rounding, tmp_path):
    """Said before the work."""
    import os

    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        "import importlib.util\nfind = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'vl_convert' else find(name, *more)\n")
    refused(model, "--report", tmp_path / "run.html", *rounding, env={**os.environ, "PYTHONPATH": str(tmp_path / "hidden")},
            fragments=["'vl-convert-python'", "pip install vl-convert-python"])


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(str(PYTHON))
    from layerpress_report import figures

    yield figures
    for name in [name for name in sys.modules if name.startswith("layerpress_report")]:
        del sys.modules[name]


def test_figures(figures):
    module = {"scheme": "4-bit", "weight_error": 0.5, "output_error": None, "tokens": 8, "fallback": None}
    modules = [{**module, "module": f"model.layers.{layer}.mlp.experts.{expert}.down_proj", "output_error": 0.1 * expert + layer,
                "routed_tokens": 10 * layer + expert} for layer in (0, 1) for expert in (0, 1)]
    modules.append({**module, "module": "lm_head", "scheme": "8-bit"})
    summary = {"modules": modules}
    assert figures.errors(summary, "output_error") == [{"layer": 0, "kind": "mlp.experts.*.down_proj", "error": 0.1},
                                                       {"layer": 1, "kind": "mlp.experts.*.down_proj", "error": 1.1}]
    assert {"layer": -1, "kind": "lm_head", "error": 0.5} in figures.errors(summary, "weight_error")
    assert [each["module"] for each in figures.worst_modules(summary, 2)] == [
        "model.layers.1.mlp.experts.1.down_proj", "model.layers.1.mlp.experts.0.down_proj"]
    assert {"layer": 1, "expert": 0, "tokens": 10} in figures.routed(summary)
    assert figures.schemes(summary) == {"4-bit": 4, "8-bit": 1}
    section = {"name": "a", "start": 2.0, "seconds": 3.0, "phases": {"solve": 2.0, "forward": 1.0}, "planned_bytes": 1 << 20}
    summary["ranks"] = [{"rank": 0, "sections": [section], "memory": {"interval_seconds": 0.5, "bytes": [0, 1 << 20]}}]
    assert [(span["phase"], span["start"], span["end"]) for span in figures.spans(summary)] == [("forward", 2, 3), ("solve", 3, 5)]
    assert [(row["kind"], row["seconds"], row["mebibytes"]) for row in figures.memory(summary)] == [
        ("measured", 0.0, 0), ("measured", 0.5, 1), ("planned", 2.0, 1), ("planned", 5.0, 1)]


@needs_charts
def test_page_is_safe_and_takes_the_readers_colors(figures):
    """Names from a checkpoint are shown, never obeyed."""
    from layerpress_report.page import page

    evil = "</script><img src=x onerror=alert(1)>"
    module = {"module": f"model.layers.0.{evil}", "scheme": evil, "output_error": 0.1, "weight_error": 0.1, "tokens": 1, "fallback": evil}
    text = page({"model": evil, "architecture": evil, "output": evil, "output_bytes": 1, "samples": 1, "tokens": 1, "seconds": 1.0,
                 "dataset": evil, "plan": {"pipeline": "basic", "peak_bytes": 1}, "peak_anonymous_bytes": 1, "threads": 1,
                 "arithmetic": "x", "recipe": evil, "modules": [module], "ranks": [{"rank": 0, "host": evil}]},
                {"perplexity": 12.5, "layers": []})
    shown = Page(text)
    assert "img" not in shown.tags and shown.fetched == [] and evil in " ".join(shown.words)
    assert "perplexity" in shown.words and "12.5" in shown.words
    assert "currentColor" in text and not re.search(r"#0[ad]0[be]0[cf]", text) and "prefers-color-scheme: dark" in text
