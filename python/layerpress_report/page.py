"""The page: one HTML file that fetches nothing. It holds the script that draws its charts, and allows no other."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape, unescape
from typing import Any, Optional

from . import charts, figures
from .pieces import STYLE, chart, duration, filled_table, head, in_script, number, size, table, tiles

_FALLBACKS = 20  # that are listed
_FIGURES = '<template id="figures">'
Evaluation = dict[str, Any]


def figures_of(page_text: str) -> dict[str, Any]:
    """The summary that a page was drawn from. Raises ValueError for another page."""
    _, found, rest = page_text.partition(_FIGURES)
    summary = json.loads(unescape(rest.partition("</template>")[0])) if found else None
    if not isinstance(summary, dict) or not {"model", "plan", "recipe"} <= summary.keys():
        raise ValueError("no summary")
    return summary


# An interpreter of expressions, because the page allows no evaluation of texts. Charts are as wide as the page, whose text
# keeps its size.
_DRAWING = """
const dark = matchMedia("(prefers-color-scheme: dark)").matches;
const width = document.querySelector("h1").clientWidth, narrow = width < 600;
const config = JSON.parse(document.getElementById("config").textContent);
config.axisY = {labelLimit: narrow ? 160 : 300};
config.legend.gradientLength = narrow ? 160 : 240;
config.legend.labelLimit = narrow ? width - 200 : 300;
config.legend.columns = Math.max(2, Math.floor(width / 125));
for (const place of document.querySelectorAll(".chart")) {
  const chart = JSON.parse(place.textContent);
  if (chart.spec) {
    chart.columns = narrow ? 1 : 2;
    chart.spec.width = Math.floor((width - 60) / chart.columns) - 20;
  } else {
    chart.width = width;
  }
  vegaEmbed(place, chart, {mode: "vega-lite", renderer: "svg", ast: true, actions: false, config,
                           tooltip: {theme: dark ? "dark" : "light"}});
}
"""


def page(summary: dict[str, Any], evaluation: Optional[Evaluation], charts_script: str) -> str:
    """`charts_script` defines vegaEmbed."""
    title = f"{summary['model']}, compressed"
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{escape(_schemes(summary))}. Layerpress {escape(str(summary.get('layerpress', '')))}.</p>",
             *_result(summary, evaluation), "<noscript><p>The charts need JavaScript.</p></noscript>"]
    if evaluation:
        parts += _quality(evaluation)
    parts += _errors(summary) + _memory(summary) + _time(summary)
    parts += [head("Run"), table((), _facts(summary)), head("Recipe"), f"<pre>{escape(summary['recipe'])}</pre>",
              f"{_FIGURES}{escape(json.dumps(summary))}</template>"]
    script = charts_script + _DRAWING
    parts += [f'<script type="application/json" id="config">{in_script(charts.CONFIG)}</script>', f"<script>{script}</script>"]
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{_policy(script)}<meta name="viewport" content="width=device-width">'
            f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n")


def _policy(script: str) -> str:
    """Nothing is fetched, and nothing but this script runs, whatever names a checkpoint has."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{allowed}">'


def _schemes(summary: dict[str, Any]) -> str:
    counts = figures.schemes(summary)
    if not counts:
        return str(summary.get("scheme", "")).capitalize()
    return "; ".join(f"{scheme}: {count} {'module' if count == 1 else 'modules'}" for scheme, count in counts.items())


def _result(summary: dict[str, Any], evaluation: Optional[Evaluation]) -> list[str]:
    """What a reader wants to know first."""
    rows = [("size", size(summary["output_bytes"]), _size_before(summary)), _quality_tile(evaluation),
            ("time", duration(summary["seconds"]), _calibration(summary)),
            ("memory", size(summary["peak_anonymous_bytes"]), f"{size(summary['plan']['peak_bytes'])} planned")]
    fallbacks = sum(1 for module in summary["modules"] if module.get("fallback"))
    if fallbacks:
        rows.append(("fallbacks", f"{fallbacks}", f"{'module' if fallbacks == 1 else 'modules'} with a fallback, listed below"))
    parts = [tiles(rows), *_warnings(summary)]
    if worst := summary.get("worst_modules"):
        measured = figures.measure(summary)
        listed = ", ".join(f"{', '.join(group['modules'])} ({number(group[measured])})" for group in worst)
        parts.append(f"<p>Largest errors, relative to {'outputs' if measured == 'relative_output_error' else 'weights'}: {escape(listed)}</p>")
    if summary.get("serving"):
        parts.append(f"<p>Serving it needs {escape(summary['serving']['hardware'])}.</p>")
    if not evaluation:
        parts.append(f"<p>To measure the quality and add it to this page:</p><pre>{escape(_command(summary))}</pre>")
    return parts


def _warnings(summary: dict[str, Any]) -> list[str]:
    """What may make the result useless."""
    parts = []
    if outsized := summary.get("outsized_errors"):
        names = ", ".join(module["module"] for module in outsized[:_FALLBACKS])
        count = f"{len(outsized)} {'module' if len(outsized) == 1 else 'modules'}"
        parts.append(f"<p><strong>Errors above 100 %</strong> in {count}: {escape(names)}</p>")
    if findings := summary.get("findings"):
        parts += [f"<p><strong>Findings of verify</strong>: {len(findings)}</p>",
                  table(("check", "where", "what"), [(each["check"], each["where"], each["what"]) for each in findings[:_FALLBACKS]])]
    return parts


def _size_before(summary: dict[str, Any]) -> str:
    before = summary.get("source_bytes")
    return f"{size(before)} before, {summary['size_change']}" if before else ""


def _quality_tile(evaluation: Optional[Evaluation]) -> tuple[str, str, str]:
    if not evaluation:
        return "quality", "not measured", ""
    if evaluation.get("kl_divergence") is not None:
        return "KL divergence", number(evaluation["kl_divergence"]), f"perplexity {_perplexities(evaluation)}"
    if evaluation.get("perplexity") is not None:
        return "perplexity", number(evaluation["perplexity"]), ""
    task, measured = next(iter((evaluation.get("tasks") or {"tasks": {"metrics": {}}}).items()))
    metric, value = next(iter(measured["metrics"].items()), ("", None))
    return f"{task} {metric}", number(value), ""


def _perplexities(evaluation: Evaluation) -> str:
    before = evaluation.get("reference_perplexity")
    return number(evaluation["perplexity"]) + (f", before {number(before)}" if before is not None else "")


def _calibration(summary: dict[str, Any]) -> str:
    if not summary["tokens"]:
        return "no calibration data"
    return f"{summary['samples']:,} {'sample' if summary['samples'] == 1 else 'samples'}, {summary['tokens']:,} tokens"


def _command(summary: dict[str, Any]) -> str:
    return f"layerpress eval {summary['output']} --reference {summary['model']} --dataset TEXTS --report PAGE.html"


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
    ranks = summary.get("ranks", [])
    hosts = list(dict.fromkeys(rank["host"] for rank in ranks))
    facts = [
        ("model", f"{summary['model']} ({summary['architecture']})"),
        ("result", f"{summary['output']}, {size(summary['output_bytes'])}"),
        ("calibration", _calibration(summary) + (f" of {summary['dataset']}" if summary.get("dataset") else "")),
        ("pipeline", summary["plan"]["pipeline"]),
        ("machine", f"{', '.join(hosts)}: {len(ranks)} {'rank' if len(ranks) == 1 else 'ranks'}, "
                    f"{summary['threads']} threads each, {summary['arithmetic']}"),
    ]
    if summary.get("uploaded"):
        facts.append(("uploaded to", summary["uploaded"]))
    return facts


_MEASURED = {"dataset": "text", "reference": "compared with", "tokens": "tokens", "perplexity": "perplexity",
             "reference_perplexity": "perplexity before", "kl_divergence": "KL divergence", "kl_median": "of the median token",
             "kl_percentile_99": "99th percentile", "top1_agreement": "same most likely token",
             "rounded_linears": "linears with quantized inputs", "engine": "engine of tasks"}


def _quality(evaluation: Evaluation) -> list[str]:
    rows = [(name, value if isinstance(value, str) else f"{value:.1%}" if key == "top1_agreement" else number(value))
            for key, name in _MEASURED.items() if isinstance(value := evaluation.get(key), (int, float, str)) and value != ""]
    parts = [head("Quality"), table((), rows)]
    tasks = [(f"{task} {metric}", number(value), *(number(measured[kind][metric]) if metric in measured.get(kind, ()) else ""
                                                    for kind in ("reference", "recovery")))
             for task, measured in (evaluation.get("tasks") or {}).items() for metric, value in measured["metrics"].items()]
    if worst := evaluation.get("worst_tokens"):
        parts += [head("Worst tokens", "The tokens with the greatest KL divergence; samples and positions count from 0."),
                  filled_table(("KL divergence", "sample", "position", "token", "after"),
                               [(number(token["kl_divergence"]), f"{token['sample']}", f"{token['position']}",
                                 _quoted(token["text"]) or f"id {token['id']}", _quoted(token["before"])) for token in worst])]
    if tasks:
        parts.append(filled_table(("task", "result", "before", "recovery"), tasks))
    if evaluation.get("layers"):
        parts += [head("Error of the residual stream", "After each subgraph, relative to the original model's."),
                  chart(charts.stream(evaluation))]
    return parts


def _quoted(text: str) -> str:
    """On one line, with its spaces visible."""
    return json.dumps(text, ensure_ascii=False) if text else ""


def _errors(summary: dict[str, Any]) -> list[str]:
    parts = []
    if figures.errors(summary, "output_error"):
        parts += [head("Error of outputs", "GPTQ's loss for an output and a token: the mean squared error on the calibration data, and a share "
                                           "for the dampening. Of the experts of a layer, the largest counts. Outputs of different linears differ in "
                                           "size."),
                  chart(charts.errors(summary, "output_error", "loss"))]
    if figures.errors(summary, "weight_error"):
        parts += [head("Error of weights", "Norm of the difference, relative to the weight's norm. Of the experts of a layer, the largest error "
                                           "counts."),
                  chart(charts.errors(summary, "weight_error", "relative error"))]
    if worst := figures.worst_modules(summary):
        tokens = {module["tokens"] for module in worst}
        several = len(figures.schemes(summary)) > 1
        parts += [head("Worst modules", "Errors are relative to outputs and weights."),
                  filled_table(("module", "scheme", "error of the output", "of the weight", "tokens"),
                               [(module["module"], module["scheme"] if several else "", number(module.get("relative_output_error")),
                                 number(module.get("weight_error")), f"{module['tokens']:,}" if len(tokens) > 1 else "") for module in worst])]
    if fallbacks := [(module["module"], module["fallback"]) for module in summary["modules"] if module.get("fallback")]:
        parts += [head("Fallbacks"), table(("module", "fallback"), fallbacks[:_FALLBACKS])]
        if len(fallbacks) > _FALLBACKS:
            parts.append(f"<p>and {len(fallbacks) - _FALLBACKS} more</p>")
    parts += _choice(summary)
    if len(figures.schemes(summary)) > 1:
        parts += [head("Schemes", "The scheme of each linear's weight."), chart(charts.schemes(summary)),
                  table(("linear", "scheme", "layers", "modules"), figures.scheme_rows(summary))]
    if figures.routed(summary):
        parts += [head("Experts", "Tokens that the router sent to each expert."), chart(charts.routed(summary))]
    return parts


def _choice(summary: dict[str, Any]) -> list[str]:
    """What mixed precision chose by."""
    mixed = summary.get("mixed_precision")
    if not mixed:
        return []
    rows = [("this result", mixed), *((own["scheme"], own) for own in mixed["uniform"])]
    return [head("Choice of schemes", "The line is the least predicted KL divergence for each number of bits. Predictions add up what rounding each "
                                      "group of linears alone costs; measured is a whole model rounded to nearest, on some of the calibration data."),
            chart(charts.choice(summary)),
            filled_table(("", "bits of a weight", "predicted KL divergence", "measured"),
                         [(name, f"{own['bits']:.3f}", number(own["predicted_kl"]),
                           number(own["measured_kl"]) if own.get("measured_kl") is not None else "") for name, own in rows])]


def _begins(summary: dict[str, Any]) -> str:
    """What charts over a run's time say of a measurement before it."""
    return " The measurement that chose the schemes came before." if summary.get("mixed_precision") else ""


def _memory(summary: dict[str, Any]) -> list[str]:
    if not figures.memory(summary):
        return []
    return [head("Memory", "Memory that the kernel cannot reclaim, and the peak that the plan expected of each subgraph."
                 + _begins(summary)),
            chart(charts.memory(summary))]


def _time(summary: dict[str, Any]) -> list[str]:
    if not any(True for _ in figures.spans(summary)):
        return []
    return [head("Time", "Phases of the subgraphs on each rank, from the start of the run. Phases alternate within a subgraph; the chart shows "
                         "their sums one after the other." + _begins(summary)),
            chart(charts.timeline(summary)),
            head("Time by subgraph", "Mean of the ranks."), chart(charts.layers(summary))]
