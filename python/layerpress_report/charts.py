"""The charts, in the terms of Vega-Lite, which draws them in the reader's browser. Their colors of text and lines are those of the
page, light or dark."""

from __future__ import annotations

from typing import Any

from . import figures

_TEXT, _LINES = "currentColor", "var(--lines)"
CONFIG = {
    "background": None, "padding": 5, "font": "system-ui, sans-serif", "view": {"stroke": None}, "mark": {"tooltip": True},
    "axis": {"labelColor": _TEXT, "titleColor": _TEXT, "gridColor": _LINES, "domainColor": _LINES, "tickColor": _LINES,
             "titleFontWeight": "normal", "labelOverlap": True},
    "legend": {"labelColor": _TEXT, "titleColor": _TEXT, "titleFontWeight": "normal", "orient": "bottom", "columns": 8, "gradientLength": 240},
    "header": {"labelColor": _TEXT, "titleColor": _TEXT},
}
_WIDTH = 860


def timeline(summary: dict[str, Any]) -> dict[str, Any]:
    bars = figures.visible(list(figures.spans(summary)))
    ranks = list(dict.fromkeys(bar["rank"] for bar in bars))
    return {"width": _WIDTH, "height": {"step": 26}, "data": {"values": bars}, "mark": {"type": "bar", "height": 18},
            "encoding": {"x": {"field": "start", "type": "quantitative", "title": "seconds"}, "x2": {"field": "end"},
                         "y": {"field": "rank", "type": "nominal", "title": None, "sort": ranks}, "color": _phases(summary)}}


def layers(summary: dict[str, Any]) -> dict[str, Any]:
    rows = figures.shares(summary)
    names = [name for _, name in sorted({(row["place"], row["section"]) for row in rows})]
    return {"width": _WIDTH, "height": 200, "data": {"values": rows}, "mark": "bar",
            "encoding": {"x": {"field": "section", "type": "nominal", "sort": names, "title": None,
                               "axis": {"labelAngle": -45, "labelLimit": 140, "labelOverlap": True}},
                         "y": {"field": "seconds", "type": "quantitative", "title": "seconds"}, "color": _phases(summary)}}


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
        return {"width": _WIDTH, "height": 200, "data": {"values": rows}, **chart}
    return {"data": {"values": rows}, "columns": 2,
            "facet": {"field": "rank", "type": "nominal", "title": None}, "spec": {"width": _WIDTH // 2 - 50, "height": 120, **chart}}


def errors(summary: dict[str, Any], measured: str, title: str) -> dict[str, Any]:
    rows = figures.errors(summary, measured)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    values = [row["error"] for row in rows if row["error"] > 0]
    scale: dict[str, Any] = {"scheme": "viridis"}
    if values and max(values) > 30 * min(values):
        scale["type"] = "log"
    return _map(rows, {"field": "kind", "type": "nominal", "title": None, "sort": kinds, "axis": {"labelLimit": 300}},
                {"field": "error", "type": "quantitative", "title": title, "scale": scale})


def schemes(summary: dict[str, Any]) -> dict[str, Any]:
    rows = figures.schemes_by_place(summary)
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    return _map(rows, {"field": "kind", "type": "nominal", "title": None, "sort": kinds, "axis": {"labelLimit": 300}},
                {"field": "scheme", "type": "nominal", "title": None, "scale": {"scheme": "tableau10"}, "legend": {"columns": 3, "labelLimit": 300}})


def stream(evaluation: dict[str, Any]) -> dict[str, Any]:
    rows = [{"layer": layer["name"], "error": layer["relative_error"]} for layer in evaluation["layers"]]
    return {"width": _WIDTH, "height": 160, "data": {"values": rows}, "mark": {"type": "line", "point": True, "color": "#4c78a8"},
            "encoding": {"x": {"field": "layer", "type": "nominal", "sort": None, "title": None,
                               "axis": {"labelAngle": -45, "labelLimit": 140, "labelOverlap": True}},
                         "y": {"field": "error", "type": "quantitative", "title": "relative error"}}}


def routed(summary: dict[str, Any]) -> dict[str, Any]:
    return _map(figures.routed(summary), {"field": "expert", "type": "ordinal", "axis": {"labelOverlap": True}},
                {"field": "tokens", "type": "quantitative", "title": "routed tokens", "scale": {"scheme": "viridis"}})


def _map(rows: list[dict[str, Any]], y: dict[str, Any], color: dict[str, Any]) -> dict[str, Any]:
    lines = len({row[y["field"]] for row in rows})
    return {"width": _WIDTH - 150, "height": {"step": 22 if lines < 30 else 8}, "data": {"values": rows}, "mark": "rect",
            "encoding": {"x": {"field": "layer", "type": "ordinal", "title": "layer", "axis": {"labelAngle": 0, "labelOverlap": True}},
                         "y": y, "color": color}}
