"""--report: the page about a run."""

import base64
import hashlib
import html.parser
import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from support import program

PYTHON = Path(__file__).resolve().parents[2] / "python"
CHARTS = program.PROGRAM.with_name("charts.js")


class Page(html.parser.HTMLParser):
    """The words of a page, its charts and scripts, and everything that a browser would fetch."""

    def __init__(self, path):
        super().__init__()
        self.words, self.charts, self.scripts, self.fetched, self.tags, self.policy = [], [], [], [], [], ""
        self.place = self.words
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        named = dict(attributes)
        self.fetched += [value for name, value in attributes if name in ("src", "href", "xlink:href", "data") and value]
        self.fetched += [name for name, _ in attributes if name.startswith("on")]
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"]
        # A template holds the figures, which no reader sees.
        places = {"script": self.scripts if "type" not in named else self.charts if "id" not in named else [], "template": []}
        self.place = places.get(tag, self.words)
        if self.place is not self.words:
            self.place.append("")

    def handle_endtag(self, tag):
        self.place = self.words

    def handle_data(self, data):
        if self.place is self.words:
            self.words.append(data)
        else:
            self.place[-1] += data

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def is_closed(self):
        """Nothing is fetched, and no script but the page's own runs."""
        [script] = self.scripts
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        wanted = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        return self.fetched == [] and self.policy == wanted and script.startswith(CHARTS.read_text())


def without(tmp_path, call):
    """The environment of a helper in which `call` runs first."""
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "sitecustomize.py").write_text(call)
    return {**os.environ, "PYTHONPATH": str(tmp_path / "before")}


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
    shown = Page(page)
    assert shown.is_closed() and len(shown.charts) == 5
    worst = details["worst_modules"][0]
    assert "4-bit int, group 32" in shown.text and "GPTQModifier" in shown.text
    drawn = " ".join(shown.charts)
    assert "mlp.down_proj" in drawn and "model.layers.1" in drawn and "planned" in drawn and "solve" in drawn
    assert {file.name for file in results.iterdir()} == {"out", "run.html", "run.json"}
    assert str(results.parent) not in page.read_text(), "folders of this machine"
    before, after = details["source_bytes"], details["output_bytes"]
    assert before == (model / "model.safetensors").stat().st_size - header_bytes(model / "model.safetensors")
    assert f"{before / after:.2f} times smaller" in shown.text and "quality not measured" in shown.text
    assert shown.text.startswith(f"{model.name}, compressed") and ", ".join(worst["modules"]) in shown.text.partition("Error of outputs")[0]
    first = max(details["modules"], key=lambda module: module["relative_output_error"])
    assert shown.words[shown.words.index("Worst modules"):].index(first["module"]) < 12, "the table begins with it"
    assert re.search(r"size [\d.]+ KiB .*memory [\d.]+ MiB [\d.]+ MiB planned", shown.text)


def header_bytes(file):
    return 8 + int.from_bytes(file.read_bytes()[:8], "little")


def test_default_place(model, results, rounding, tmp_path):
    """Beside the summary, unless that is refused, or something else has the name."""
    program.oneshot(model, results / "out", *rounding, "--summary", results / "run.json")
    page = results / "run.html"
    assert Page(page).is_closed() and len(Page(page).charts) == 4
    again = ["--overwrite", "--summary", results / "run.json", *rounding]
    page.unlink()
    program.oneshot(model, results / "out", *again, "--report", "none")
    assert not page.exists()
    page.write_text("<p>mine</p>")
    outcome = program.run("oneshot", model, "--output", results / "out", *again)
    assert page.read_text() == "<p>mine</p>" and f"{page}: was not written by oneshot --report" in outcome.errors
    page.unlink()
    broken = without(tmp_path, "import sys\nsys.modules['layerpress_report'] = None\n")
    outcome = program.run("oneshot", model, "--output", results / "out", *again, env=broken)
    assert "no page was drawn" in outcome.errors and not page.exists() and (results / "out" / "config.json").exists()
    pipe = results / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        program.oneshot(model, results / "out", "--overwrite", "--summary", pipe, *rounding)
        assert json.loads(reader.stdout.read())["modules"] and pipe.is_fifo()
    assert not pipe.with_suffix(".html").exists()


def test_without_data(model, results, rounding):
    program.oneshot(model, results / "out", *rounding, "--report", results / "run.html")
    assert "no calibration data" in Page(results / "run.html").text


def test_evaluation_joins_the_page(model, results, samples, rounding):
    page = results / "run.html"
    out = program.oneshot(model, results / "out", *rounding, "--report", page)
    before = Page(page)
    figures = program.run("eval", out, "--dataset", samples, "--reference", model, "--report", page).json()
    after = Page(page)
    assert after.is_closed()
    assert "Quality" not in before.words and "Quality" in after.words and f"{figures['perplexity']:.4g}" in after.words
    assert len(after.charts) == len(before.charts) + 1 and set(before.words) - set(after.words) <= {"quality", "not measured"} | {
        word for word in before.words if "measure the quality" in word or "layerpress eval" in word}
    assert f"KL divergence {figures['kl_divergence']:.4g}" in after.text and str(model) not in page.read_text()
    last = figures["worst_tokens"][4]
    assert "Worst tokens" in after.words and f"{last['kl_divergence']:.4g}" in after.words
    assert (json.dumps(last["text"], ensure_ascii=False) if last["text"] else f"id {last['id']}") in after.words
    (results / "other.html").write_text("<p>other</p>")
    for name, fragment in (("none.html", "no such file"), ("other.html", "was not written by oneshot --report")):
        program.fails("eval", out, "--dataset", samples, "--report", results / name, fragments=["[report]", name, fragment])


def test_figures_outlive_their_page(model, results, samples, rounding, tmp_path):
    """A page that cannot be written does not take an evaluation's figures with it."""
    out, page = results / "out", tmp_path / "page.html"
    program.oneshot(model, out, *rounding, "--report", page)
    before = page.read_bytes()

    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) // 2, resource.RLIM_INFINITY))

    outcome = program.run("eval", out, "--dataset", samples, "--report", page, preexec_fn=limited)
    assert outcome.json()["perplexity"] > 0 and "the figures are complete" in outcome.errors and page.read_bytes() == before


def test_refused_places(model, refused, rounding, results, tmp_path):
    for place, fault in ((tmp_path / "none" / "run.html", "does not exist"), (tmp_path, "cannot be written")):
        refused(model, "--report", place, *rounding, fragments=["--report", str(tmp_path), fault], code=2)
    same = tmp_path / "run.html"
    refused(model, "--report", tmp_path / "nonee", *rounding, fragments=["--report", "nonee is no name of a page"], code=2)
    refused(model, "--report", same, "--summary", same, *rounding, fragments=["would be written over the file of --"], code=2)


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
                "relative_output_error": 0.1 * expert + 0.5 / (1 + layer), "routed_tokens": 10 * layer + expert}
               for layer in (0, 1) for expert in (0, 1)]
    modules.append({**module, "module": "lm_head", "scheme": "8-bit"})
    summary = {"modules": modules}
    assert figures.errors(summary, "output_error") == [{"layer": 0, "kind": "mlp.experts.*.down_proj", "error": 0.1},
                                                       {"layer": 1, "kind": "mlp.experts.*.down_proj", "error": 1.1}]
    assert {"layer": -1, "kind": "lm_head", "error": 0.5} in figures.errors(summary, "weight_error")
    assert [each["module"] for each in figures.worst_modules(summary, 2)] == [
        "model.layers.0.mlp.experts.1.down_proj", "model.layers.0.mlp.experts.0.down_proj"], "relative to their outputs"
    assert {"layer": 1, "expert": 0, "tokens": 10} in figures.routed(summary)
    assert figures.schemes(summary) == {"4-bit": 4, "8-bit": 1}
    section = {"name": "a", "start": 2.0, "seconds": 3.0, "phases": {"solve": 2.0, "forward": 1.0}, "planned_bytes": 2 ** 20}
    summary["ranks"] = [{"rank": 0, "sections": [section], "memory": {"interval_seconds": 0.5, "bytes": [0, 2 ** 20]}}]
    assert [(span["phase"], span["start"], span["end"]) for span in figures.spans(summary)] == [("forward", 2, 3), ("solve", 3, 5)]
    assert [(row["kind"], row["seconds"], row["mebibytes"]) for row in figures.memory(summary)] == [
        ("measured", 0.0, 0), ("measured", 0.5, 1), ("planned", 2.0, 1), ("planned", 5.0, 1)]


def test_choice_of_schemes(figures, tmp_path):
    from layerpress_report.page import page

    mixed = {"bits": 5.0, "predicted_kl": 0.2, "measured_kl": 0.25,
             "curve": [{"bits": 4.5, "predicted_kl": 0.6}, {"bits": 16, "predicted_kl": 0}],
             "uniform": [{"scheme": "W4A16", "bits": 4.5, "predicted_kl": 0.6, "measured_kl": 0.7},
                         {"scheme": "none", "bits": 16, "predicted_kl": 0}]}
    assert [(row["kind"], row["bits"], row["kl"]) for row in figures.choice({"mixed_precision": mixed})] == [
        ("predicted", 4.5, 0.6), ("predicted", 16, 0), ("one scheme", 4.5, 0.6), ("measured", 4.5, 0.7), ("one scheme", 16, 0),
        ("chosen", 5.0, 0.2), ("measured", 5.0, 0.25)]
    summary = {"model": "m", "architecture": "a", "output": "o", "output_bytes": 1, "samples": 1, "tokens": 1, "seconds": 1.0,
               "plan": {"pipeline": "sequential", "peak_bytes": 1}, "peak_anonymous_bytes": 1, "threads": 1, "arithmetic": "x", "recipe": "",
               "modules": [], "mixed_precision": mixed}
    file = tmp_path / "page.html"
    file.write_text(page(summary, None, CHARTS.read_text()))
    charts = [json.loads(chart)["data"]["values"] for chart in Page(file).charts]
    drawn = [values for values in charts if values[0].get("kl")]
    assert len(drawn) == 1 and all(row["kl"] > 0 for row in drawn[0]), "a logarithm has no place for 0"
    assert {"0.25", "W4A16", "0.7"} <= set(Page(file).words)
    del mixed["measured_kl"], mixed["uniform"][0]["measured_kl"]  # a run that an earlier version began
    file.write_text(page(summary, None, CHARTS.read_text()))
    assert "measured" not in Page(file).words


def test_page_is_safe_and_takes_the_readers_colors(figures, tmp_path):
    """Names from a checkpoint are shown, never obeyed."""
    from layerpress_report.page import figures_of, page

    evil = "</script></template><img src=x onerror=alert(1)>"
    module = {"module": f"model.layers.0.{evil}", "scheme": evil, "output_error": 0.1, "weight_error": 0.1, "tokens": 1, "fallback": evil}
    summary = {"model": evil, "architecture": evil, "output": evil, "output_bytes": 1, "samples": 1, "tokens": 1, "seconds": 1.0,
               "dataset": evil, "plan": {"pipeline": "basic", "peak_bytes": 1}, "peak_anonymous_bytes": 1, "threads": 1,
               "arithmetic": "x", "recipe": evil, "modules": [module], "ranks": [{"rank": 0, "host": evil}],
               "worst_modules": [{"modules": [evil], "weight_error": 0.1}]}
    file = tmp_path / "page.html"
    file.write_text(page(summary, {"perplexity": 12.5, "layers": []}, CHARTS.read_text()))
    shown = Page(file)
    assert shown.is_closed() and "img" not in shown.tags and evil in shown.text
    assert {"module", "fallback", "perplexity", "12.5"} <= set(shown.words)
    assert any(json.loads(chart)["data"]["values"][0]["kind"] == evil for chart in shown.charts)
    assert figures_of(file.read_text()) == summary
    assert "currentColor" in file.read_text() and "prefers-color-scheme: dark" in file.read_text()


def test_schemes_of_several(figures):
    modules = [{"module": f"model.layers.{layer}.{kind}", "scheme": scheme}
               for layer in (0, 1, 2, 5) for kind, scheme in (("mlp.up", "4-bit"), ("mlp.down", "8-bit" if layer != 1 else "4-bit"))]
    assert figures.scheme_rows({"modules": [*modules, {"module": "lm_head", "scheme": "8-bit"}]}) == [
        ("mlp.up", "4-bit", "0-2, 5", 4), ("mlp.down", "8-bit", "0, 2, 5", 3), ("mlp.down", "4-bit", "1", 1), ("lm_head", "8-bit", "", 1)]
