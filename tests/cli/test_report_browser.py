"""The page about a run, as Chromium shows it."""

import html
import json
import shutil
import subprocess

import pytest
from PIL import Image
from support import program

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.nightly, pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (scripts/setup --nightly)")]
WIDTH, HEIGHT = 1000, 2400
RECIPE = {"default_stage": {"default_modifiers": {"GPTQModifier": {"ignore": ["lm_head"], "config_groups": {
    "a": {"targets": ["re:.*self_attn.*"], "weights": {"num_bits": 8, "type": "int", "strategy": "channel"}},
    "b": {"targets": ["re:.*mlp.*"], "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}}}}}}}


def shown(page, folder, *options):
    """What Chromium prints and logs."""
    process = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={WIDTH},{HEIGHT}",
                              f"--user-data-dir={folder / 'chromium'}", "--virtual-time-budget=20000", "--enable-logging=stderr", *options,
                              page.as_uri()], capture_output=True, text=True, timeout=180)
    assert process.returncode == 0 and "CONSOLE" not in process.stderr, process.stderr
    return process.stdout


@pytest.fixture
def page(model, results, samples):
    program.oneshot(model, results / "out", "--recipe", json.dumps(RECIPE), "--dataset", samples, "--summary", results / "run.json")
    program.run("eval", results / "out", "--dataset", samples, "--reference", model, "--report", results / "run.html")
    return results / "run.html"


def test_charts_are_drawn(page, tmp_path):
    document = shown(page, tmp_path, "--dump-dom")
    charts = [rest.partition("<script")[0] for rest in document.split('<div class="chart')[1:]]
    assert len(charts) == 7 and all("<svg" in chart and "<path" in chart for chart in charts)
    for words in (["seconds", "rank 0", "solve"], ["seconds", "solve"], ["MiB", "planned"], ["mean squared error", "mlp.down_proj"],
                  ["relative error"], ["4-bit int, group 32", "8-bit int, channel"]):
        assert any(all(f">{word}</text>" in chart for word in words) for chart in charts), words
    assert not any("Infinity" in chart or "NaN" in chart for chart in charts)


@pytest.mark.parametrize("preferred, is_dark", [(1, False), (0, True)])
def test_colors_follow_the_reader(preferred, is_dark, page, tmp_path):
    """Text, also that of charts, stands out from the paper."""
    shown(page, tmp_path, f"--blink-settings=preferredColorScheme={preferred}", f"--screenshot={tmp_path / 'page.png'}")
    picture = Image.open(tmp_path / "page.png").convert("L")
    assert picture.size == (WIDTH, HEIGHT)
    paper = picture.getpixel((2, HEIGHT - 2))
    assert paper < 40 if is_dark else paper > 215
    assert has_ink(picture.crop((0, 0, WIDTH, 80)), paper)  # the title
    document = shown(page, tmp_path, "--dump-dom")
    assert 'fill="currentColor"' in document and 'stroke="var(--lines)"' in document
    left = picture.crop((0, 400, 60, HEIGHT))  # labels of the charts' axes
    assert has_ink(left, paper)


FRAME = """<meta charset="utf-8"><iframe style="border: 0; width: %dpx; height: 5000px" srcdoc="%s"></iframe><pre></pre><script>
const frame = document.querySelector("iframe");
function look() {
  const page = frame.contentDocument, charts = [...page.querySelectorAll(".chart")];
  if (charts.length == 0 || !charts.every(chart => chart.querySelector("svg"))) return setTimeout(look, 100);
  const letters = [...page.querySelectorAll("svg text")].filter(text => text.textContent).map(text => {
    const scale = text.ownerSVGElement.getBoundingClientRect().width / text.ownerSVGElement.width.baseVal.value;
    return scale * parseFloat(page.defaultView.getComputedStyle(text).fontSize);
  });
  const widths = charts.map(chart => chart.querySelector("svg").getBoundingClientRect().right);
  document.querySelector("pre").textContent = JSON.stringify(
    {page: page.documentElement.scrollWidth, widest: Math.max(...widths), smallest: Math.min(...letters), count: charts.length});
}
look();
</script>"""


@pytest.mark.parametrize("width", [390, 1280])
def test_charts_fit_and_can_be_read(width, page, tmp_path):
    """In a frame, because a window of Chromium cannot be as narrow as a phone."""
    framed = tmp_path / "framed.html"
    framed.write_text(FRAME % (width, html.escape(page.read_text())))
    document = shown(framed, tmp_path, "--dump-dom")
    measured = json.loads(html.unescape(document.rpartition("<pre>")[2].partition("</pre>")[0]))
    assert measured["count"] == 7 and measured["page"] <= width and measured["widest"] <= width and measured["smallest"] >= 11


def has_ink(picture, paper):
    """Pixels that differ from the paper by at least half of what is possible."""
    counts = picture.histogram()
    far = sum(count for gray, count in enumerate(counts) if abs(gray - paper) > 128)
    return far > 100
