"""The charts, in the terms of Vega-Lite, which draws them in the reader's browser. Their colors of text and lines are those of the
page, light or dark."""

from __future__ import annotations

from typing import Any

from . import figures

_TEXT, _LINES = "currentColor", "var(--lines)"
_SIZES = {"labelFontSize": 12, "titleFontSize": 12, "titleFontWeight": "normal", "labelColor": _TEXT, "titleColor": _TEXT}
CONFIG = {
    "background": None, "padding": 5, "font": "system-ui, sans-serif", "view": {"stroke": None}, "mark": {"tooltip": True},
    "axis": {**_SIZES, "gridColor": _LINES, "domainColor": _LINES, "tickColor": _LINES, "labelOverlap": True, "labelSeparation": 6},
    "legend": {**_SIZES, "orient": "bottom"},
    "header": _SIZES,
}
_FITTED = {"autosize": {"type": "fit-x", "contains": "padding"}}  # its width is the page's


def timeline(summary: dict[str, Any]) -> dict[str, Any]:
    bars = figures.visible(list(figures.spans(summary)))
    ranks = list(dict.fromkeys(bar["rank"] for bar in bars))
    return {**_FITTED, "height": 26 * len(ranks), "data": {"values": bars}, "mark": {"type": "bar", "height": 18},
            "encoding": {"x": {"field": "start", "type": "quantitative", "title": "seconds"}, "x2": {"field": "end"},
                         "y": {"field": "rank", "type": "nominal", "title": None, "sort": ranks}, "color": _phases(summary)}}


def layers(summary: dict[str, Any]) -> dict[str, Any]:
    rows = figures.shares(summary)
    names = [name for _, name in sorted({(row["place"], row["section"]) for row in rows})]
    return {**_FITTED, "height": 200, "data": {"values": rows}, "mark": "bar",
            "encoding": {"x": _subgraphs("section", names),
                         "y": {"field": "seconds", "type": "quantitative", "title": "seconds"}, "color": _phases(summary)}}


def _subgraphs(field: str, names: list[str]) -> dict[str, Any]:
    """An axis of subgraphs. A layer is labelled with its number."""
    return {"field": field, "type": "nominal", "sort": names, "title": "subgraph",
            "axis": {"labelAngle": 0, "labelExpr": "slice(datum.label, 1 + lastindexof(datum.label, '.'))"}}


def _phases(summary: dict[str, Any]) -> dict[str, Any]:
    """The same color for a phase in every chart."""
    names = sorted({row["phase"] for row in figures.shares(summary)})
    return {"field": "phase", "type": "nominal", "title": None, "scale": {"domain": names, "scheme": "tableau20"}}


def memory(summary: dict[str, Any]) -> dict[str, Any]:
    rows = figures.memory(summary)
    ranks = len({row["rank"] for row in rows})
    chart = {"mark": {"type": "line", "interpolate": "step-after", "strokeWidth": 1.6},
             "encoding": {"x": {"field": "seconds", "type": "quantitative", "title": "seconds"},
                          "y": {"field": "mebibytes", "type": "quantitative", "title": "MiB"},
                          "color": {"field": "kind", "type": "nominal", "title": None,
                                    "scale": {"domain": ["measured", "planned"], "range": ["#4c78a8", "#e4572e"]}},
                          "strokeDash": {"field": "kind", "type": "nominal", "title": None,
                                         "scale": {"domain": ["measured", "planned"], "range": [[1, 0], [5, 3]]}}}}
    if ranks < 2:
        return {**_FITTED, "height": 200, "data": {"values": rows}, **chart}
    return {"data": {"values": rows},
            "facet": {"field": "rank", "type": "nominal", "title": None}, "spec": {"height": 120, **chart}}


def errors(summary: dict[str, Any], measured: str, title: str) -> dict[str, Any]:
    rows = figures.errors(summary, measured)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    values = [row["error"] for row in rows if row["error"] > 0]
    scale: dict[str, Any] = {"scheme": "viridis"}
    if values and max(values) > 30 * min(values):
        scale["type"] = "log"
    return _map(rows, {"field": "kind", "type": "nominal", "title": None, "sort": kinds},
                {"field": "error", "type": "quantitative", "title": title, "scale": scale, "legend": {"format": ".2~g"}})


def choice(summary: dict[str, Any]) -> dict[str, Any]:
    """The curve of the best choices, and the schemes alone and the choice as points on it or above. A logarithm has no place for 0."""
    rows = [row for row in figures.choice(summary) if row["kl"] > 0]
    kinds, colors = ["predicted", "one scheme", "chosen", "measured"], ["#4c78a8", "#b07aa1", "#e4572e", "#54a24b"]
    shared = {"x": {"field": "bits", "type": "quantitative", "title": "bits of a weight", "scale": {"zero": False}},
              "y": {"field": "kl", "type": "quantitative", "title": "KL divergence", "scale": {"type": "log"},
                    "axis": {"format": ".2~g", "tickCount": 5}}}
    color = {"field": "kind", "type": "nominal", "title": None, "scale": {"domain": kinds, "range": colors}}
    named = {"field": "what", "type": "nominal", "title": "what"}
    line = {"mark": {"type": "line", "strokeWidth": 1.6}, "transform": [{"filter": "datum.kind == 'predicted'"}],
            "encoding": {**shared, "color": color}}
    points = {"mark": {"type": "point", "size": 90, "strokeWidth": 2}, "transform": [{"filter": "datum.kind != 'predicted'"}],
              "encoding": {**shared, "color": color, "shape": {"field": "kind", "type": "nominal", "title": None, "legend": None},
                           "tooltip": [named, *({"field": field, "type": "quantitative", "format": ".4~g"} for field in ("bits", "kl"))]}}
    return {**_FITTED, "height": 220, "data": {"values": rows}, "layer": [line, points]}


def schemes(summary: dict[str, Any]) -> dict[str, Any]:
    rows = figures.schemes_by_place(summary)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    return _map(rows, {"field": "kind", "type": "nominal", "title": None, "sort": kinds},
                {"field": "scheme", "type": "nominal", "title": None, "scale": {"scheme": "tableau10"}, "legend": {"columns": 1}})


def stream(evaluation: dict[str, Any]) -> dict[str, Any]:
    rows = [{"layer": layer["name"], "error": layer["relative_error"]} for layer in evaluation["layers"]]
    return {**_FITTED, "height": 160, "data": {"values": rows}, "mark": {"type": "line", "point": True, "color": "#4c78a8"},
            "encoding": {"x": _subgraphs("layer", [row["layer"] for row in rows]),
                         "y": {"field": "error", "type": "quantitative", "title": "relative error"}}}


def routed(summary: dict[str, Any]) -> dict[str, Any]:
    return _map(figures.routed(summary), {"field": "expert", "type": "ordinal"},
                {"field": "tokens", "type": "quantitative", "title": "routed tokens", "scale": {"scheme": "viridis"}})


def _map(rows: list[dict[str, Any]], y: dict[str, Any], color: dict[str, Any]) -> dict[str, Any]:
    lines = len({row[y["field"]] for row in rows})
    return {**_FITTED, "height": lines * (22 if lines < 30 else 8), "data": {"values": rows}, "mark": "rect",
            "encoding": {"x": {"field": "layer", "type": "ordinal", "title": "layer", "axis": {"labelAngle": 0}},
                         "y": y, "color": color}}
