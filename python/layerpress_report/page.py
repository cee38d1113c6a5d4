"""The page: one HTML file that fetches nothing. It holds the script that draws its charts, and allows no other."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape, unescape
from typing import Any, Iterable, Optional, Sequence

from . import charts, figures

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --soft: #5d6470; --lines: #dcdfe4; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e6e8eb; --soft: #9aa2ad; --lines: #3a3f47; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { color: var(--soft); margin: .2rem 0 .8rem; } .chart svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--lines);
  vertical-align: top; } th { font-weight: 600; } table.facts td:first-child { width: 9rem; color: var(--soft); }
pre { border: 1px solid var(--lines); border-radius: 6px; padding: .7rem 1rem; overflow-x: auto; font-size: 13px; }
"""


_FIGURES = '<template id="figures">'


def figures_of(page_text: str) -> dict[str, Any]:
    """The summary that a page was drawn from. Raises ValueError for another page."""
    _, found, rest = page_text.partition(_FIGURES)
    summary = json.loads(unescape(rest.partition("</template>")[0])) if found else None
    if not isinstance(summary, dict) or not {"model", "plan", "recipe"} <= summary.keys():
        raise ValueError("no summary")
    return summary


# An interpreter of expressions, because the page allows no evaluation of texts.
_DRAWING = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const config = JSON.parse(document.getElementById("config").textContent);
for (const place of document.querySelectorAll(".chart")) {
  const options = {mode: "vega-lite", renderer: "svg", ast: true, actions: false, config, tooltip: {theme: dark ? "dark" : "light"}};
  vegaEmbed(place, JSON.parse(place.textContent), options);
}
"""


def page(summary: dict[str, Any], evaluation: Optional[dict[str, Any]], charts_script: str) -> str:
    """`charts_script` defines vegaEmbed."""
    title = f"{summary['model']}, compressed"
    parts = [f"<h1>{escape(title)}</h1>", f"<p>Layerpress {escape(str(summary.get('layerpress', '')))}</p>", _table((), _facts(summary)),
             "<noscript><p>The charts need JavaScript.</p></noscript>"]
    if evaluation:
        parts += _quality(evaluation)
    parts += _time(summary) + _memory(summary) + _errors(summary)
    parts += [_head("Recipe"), f"<pre>{escape(summary['recipe'])}</pre>", f"{_FIGURES}{escape(json.dumps(summary))}</template>"]
    script = charts_script + _DRAWING
    parts += [f'<script type="application/json" id="config">{_json(charts.CONFIG)}</script>', f"<script>{script}</script>"]
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{_policy(script)}<meta name="viewport" content="width=device-width">'
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n")


def _policy(script: str) -> str:
    """Nothing is fetched, and nothing but this script runs, whatever names a checkpoint has."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'


def _json(value: Any) -> str:
    """JSON inside of a script element, which nothing in it can end."""
    return json.dumps(value).replace("<", "\\u003c")


def _chart(chart: dict[str, Any]) -> str:
    return f'<div class="chart"><script type="application/json">{_json(chart)}</script></div>'


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    plan = summary["plan"]
    ranks = summary.get("ranks", [])
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    facts = [
        ("model", f"{summary['model']} ({summary['architecture']})"),
        ("result", f"{summary['output']}, {_bytes(summary['output_bytes'])}"),
        ("weights", "; ".join(f"{scheme}: {count} modules" for scheme, count in figures.schemes(summary).items())),
        ("calibration", f"{summary['samples']} samples, {summary['tokens']} tokens"
                        + (f" of {summary['dataset']}" if summary.get("dataset") else "") if summary["tokens"] else "none"),
        ("time", f"{summary['seconds']:.1f} s, pipeline {plan['pipeline']}"),
        ("memory", f"{_bytes(summary['peak_anonymous_bytes'])} at most, {_bytes(plan['peak_bytes'])} planned"),
        ("machine", f"{', '.join(hosts)}: {len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}, "
                    f"{summary['threads']} threads each, {summary['arithmetic']}"),
    ]
    if summary.get("uploaded"):
        facts.append(("uploaded to", summary["uploaded"]))
    return facts


def _quality(evaluation: dict[str, Any]) -> list[str]:
    rows = [(name.replace("_", " "), value if isinstance(value, str) else _number(value)) for name, value in evaluation.items()
            if isinstance(value, (int, float, str)) and value != ""]
    parts = [_head("Quality"), _table((), rows)]
    tasks = [(f"{task} {metric}", _number(value), *(_number(figures[kind][metric]) if metric in figures.get(kind, ()) else ""
                                                     for kind in ("reference", "recovery")))
             for task, figures in (evaluation.get("tasks") or {}).items() for metric, value in figures["metrics"].items()]
    if tasks:
        parts.append(_table(("task", "", "reference", "recovery"), tasks))
    if evaluation.get("layers"):
        parts += [_head("Error of the residual stream", "After each subgraph, relative to the reference."),
                  _chart(charts.stream(evaluation))]
    return parts


def _time(summary: dict[str, Any]) -> list[str]:
    if not any(True for _ in figures.spans(summary)):
        return []
    return [_head("Time", "Phases of the subgraphs on each rank, from the start of the run. Inside of a subgraph the phases alternate; they are "
                          "drawn one after the other."),
            _chart(charts.timeline(summary)),
            _head("Time by subgraph", "Mean of the ranks."), _chart(charts.layers(summary))]


def _memory(summary: dict[str, Any]) -> list[str]:
    if not figures.memory(summary):
        return []
    return [_head("Memory", "What the kernel cannot reclaim, beside the plan's peak for the subgraph that was worked on."),
            _chart(charts.memory(summary))]


def _errors(summary: dict[str, Any]) -> list[str]:
    parts = []
    if figures.errors(summary, "output_error"):
        parts += [_head("Error of outputs", "Mean squared error of an output per token, on the calibration data; the largest of alike experts. "
                                            "Outputs of different linears have different sizes."),
                  _chart(charts.errors(summary, "output_error", "mean squared error"))]
    if figures.errors(summary, "weight_error"):
        parts += [_head("Error of weights", "Norm of the difference, relative to the weight's; the largest of alike experts."),
                  _chart(charts.errors(summary, "weight_error", "relative error")), _head("Worst modules"),
                  _table(("module", "scheme", "error of the output", "of the weight", "tokens", "fallback"),
                         [(module["module"], module["scheme"], _number(module.get("output_error")), _number(module.get("weight_error")),
                           f"{module['tokens']:,}", module.get("fallback") or "") for module in figures.worst_modules(summary)])]
    if len(figures.schemes(summary)) > 1:
        parts += [_head("Schemes", "What the weights of each linear became."), _chart(charts.schemes(summary)),
                  _table(("linear", "scheme", "layers", "modules"), figures.scheme_rows(summary))]
    if figures.routed(summary):
        parts += [_head("Experts", "Tokens that the router sent to each expert."), _chart(charts.routed(summary))]
    return parts


def _head(title: str, text: str = "") -> str:
    return f"<h2>{escape(title)}</h2>" + (f"<p>{escape(text)}</p>" if text else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    return f"<table{'' if head else ' class=facts'}>" + (line(head, "th") if head else "") + "".join(line(row, "td") for row in rows) + "</table>"


def _number(value: Optional[float]) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _bytes(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
