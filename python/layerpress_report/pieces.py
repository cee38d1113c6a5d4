"""Pieces of the page, and how it writes figures."""

from __future__ import annotations

import json
from html import escape
from typing import Any, Iterable, Optional, Sequence

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c1e21; --soft: #5d6470; --lines: #dcdfe4; --card: #f5f6f8; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181c; --ink: #e6e8eb; --soft: #9aa2ad; --lines: #3a3f47; --card: #1f2228; } }
body { background: var(--paper); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; max-width: 960px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; overflow-wrap: anywhere; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .4rem; }
p { color: var(--soft); margin: .2rem 0 .8rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: .7rem; margin: 1.2rem 0; }
.tiles div { background: var(--card); border-radius: 8px; padding: .6rem .9rem; }
.tiles b { display: block; font-size: 1.35rem; font-weight: 600; line-height: 1.3; }
.tiles span { display: block; color: var(--soft); font-size: .85rem; }
.chart { width: 100%; } .wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--lines);
  vertical-align: top; min-width: 4rem; } th { font-weight: 600; }
table.facts td:first-child { width: 9rem; color: var(--soft); }
pre { background: var(--card); border-radius: 8px; padding: .7rem 1rem; font-size: 13px; white-space: pre-wrap; overflow-wrap: anywhere; }
@media (max-width: 600px) { table { font-size: .85rem; } td { overflow-wrap: anywhere; } td:first-child { min-width: 10rem; }
  td:nth-child(2) { min-width: 5.5rem; } table.facts td:first-child { min-width: 7rem; } }
"""


def head(title: str, text: str = "") -> str:
    return f"<h2>{escape(title)}</h2>" + (f"<p>{escape(text)}</p>" if text else "")


def tiles(rows: Iterable[tuple[str, str, str]]) -> str:
    """Figures that are read first: (name, figure, what there is to say about it)."""
    def tile(name: str, figure: str, more: str) -> str:
        return f"<div><span>{escape(name)}</span><b>{escape(figure)}</b><span>{escape(more)}</span></div>"

    return f'<div class="tiles">{"".join(tile(*row) for row in rows)}</div>'


def table(names: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for cell in cells) + "</tr>"

    kind = "" if names else " class=facts"
    lines = (line(names, "th") if names else "") + "".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table{kind}>{lines}</table></div>'


def filled_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Without columns that say nothing."""
    kept = [column for column in range(len(names)) if any(row[column] for row in rows)]
    return table([names[column] for column in kept], [[row[column] for column in kept] for row in rows])


def chart(drawn: dict[str, Any]) -> str:
    return f'<div class="chart"><script type="application/json">{in_script(drawn)}</script></div>'


def in_script(value: Any) -> str:
    """JSON inside of a script element, which nothing in it can end."""
    return json.dumps(value).replace("<", "\\u003c")


def number(value: Optional[float]) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def size(count: float) -> str:
    """As the program writes it."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    unit = 0
    while count >= 999.5 and unit + 1 < len(units):
        count, unit = count / 1024, unit + 1
    return f"{count:.{0 if unit == 0 else 2 if count < 9.995 else 1}f} {units[unit]}"


def duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02} min"
