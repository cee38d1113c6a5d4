"""The figures of a run's summary, in the form that charts and tables want."""

from __future__ import annotations

import re
from typing import Any, Iterator

MEBIBYTE = 2 ** 20
_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")


def spans(summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """For each rank and subgraph, its phases one after the other: {"rank", "section", "phase", "start", "end"} in seconds. The order
    inside of a subgraph is that of the phases' names, not that of the run, which alternates between them."""
    for rank in summary.get("ranks", []):
        for section in rank.get("sections", []):
            start = section["start"]
            for phase, seconds in sorted(section["phases"].items()):
                yield {"rank": f"rank {rank['rank']}", "section": section["name"], "phase": phase, "start": start,
                       "end": start + seconds}
                start += seconds


def visible(bars: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without bars that would be thinner than a third of a pixel."""
    end = max((bar["end"] for bar in bars), default=0)
    return [bar for bar in bars if bar["end"] - bar["start"] > end / 3000]


def shares(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Mean seconds of the ranks by subgraph, in the run's order, and phase."""
    ranks = [rank for rank in summary.get("ranks", []) if rank.get("sections")]
    sums: dict[tuple[int, str, str], float] = {}
    for rank in ranks:
        for place, section in enumerate(rank["sections"]):
            for phase, seconds in section["phases"].items():
                key = (place, section["name"], phase)
                sums[key] = sums.get(key, 0) + seconds / len(ranks)
    return [{"place": place, "section": name, "phase": phase, "seconds": seconds} for (place, name, phase), seconds in sums.items()]


def memory(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Measured maxima, and the plan for the subgraph that was worked on then: {"rank", "seconds", "mebibytes", "kind"}."""
    rows = []
    for rank in summary.get("ranks", []):
        name = f"rank {rank['rank']}"
        history = rank.get("memory")
        for place, value in enumerate(history["bytes"] if history else ()):
            rows.append({"rank": name, "seconds": place * history["interval_seconds"], "mebibytes": value / MEBIBYTE, "kind": "measured"})
        for section in rank.get("sections", []):
            if not section.get("planned_bytes"):
                continue
            for seconds in (section["start"], section["start"] + section["seconds"]):
                rows.append({"rank": name, "seconds": seconds, "mebibytes": section["planned_bytes"] / MEBIBYTE, "kind": "planned"})
    return rows


def measure(summary: dict[str, Any]) -> str:
    """What modules are compared by: the error of their outputs, relative to them, or of their weights where no statistics were collected."""
    measured = any(module.get("relative_output_error") is not None for module in summary.get("modules", []))
    return "relative_output_error" if measured else "weight_error"


def place_of(name: str) -> tuple[int, str]:
    """The layer's number and the kind of linear: (3, "mlp.experts.*.down_proj"); -1 for modules outside of layers."""
    found = _NUMBER.search(name)
    if found is None:
        return -1, name
    return int(found[1]), _NUMBER.sub(".*", name[found.end() + 1:])


def errors(summary: dict[str, Any], measured: str) -> list[dict[str, Any]]:
    """The largest error by layer and kind of linear; experts of a layer are one kind."""
    worst: dict[tuple[int, str], float] = {}
    for module in summary.get("modules", []):
        if module.get(measured) is not None:
            place = place_of(module["module"])
            worst[place] = max(worst.get(place, 0.0), module[measured])
    return [{"layer": layer, "kind": kind, "error": value} for (layer, kind), value in worst.items()]


def worst_modules(summary: dict[str, Any], count: int = 10) -> list[dict[str, Any]]:
    """In the order of the summary's own list, which is shorter."""
    measured = measure(summary)
    known = [module for module in summary.get("modules", []) if module.get(measured) is not None]
    return sorted(known, key=lambda module: module[measured], reverse=True)[:count]


def routed(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Tokens that the router sent to each expert."""
    rows: dict[tuple[int, int], int] = {}
    for module in summary.get("modules", []):
        numbers = _NUMBER.findall(module["module"])
        if module.get("routed_tokens") is not None and len(numbers) > 1:
            rows[int(numbers[0]), int(numbers[1])] = module["routed_tokens"]
    return [{"layer": layer, "expert": expert, "tokens": tokens} for (layer, expert), tokens in rows.items()]


def schemes_by_place(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The scheme by layer and kind of linear."""
    found = {place_of(module["module"]): module["scheme"] for module in summary.get("modules", [])}
    return [{"layer": layer, "kind": kind, "scheme": scheme} for (layer, kind), scheme in found.items()]


def scheme_rows(summary: dict[str, Any]) -> list[tuple[str, str, str, int]]:
    """For each kind of linear and scheme, the layers that have it and the number of their modules."""
    found: dict[tuple[str, str], list[int]] = {}
    for module in summary.get("modules", []):
        layer, kind = place_of(module["module"])
        found.setdefault((kind, module["scheme"]), []).append(layer)
    return [(kind, scheme, _ranges(sorted(set(layers) - {-1})), len(layers)) for (kind, scheme), layers in found.items()]


def _ranges(numbers: list[int]) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def choice(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """Bits and KL divergences of a choice by measurements: {"bits", "kl", "kind", "what"}. The kinds are "predicted" for the least loss
    at other limits, "one scheme" and "chosen", and "measured" for those of them that were measured."""
    mixed = summary.get("mixed_precision") or {}
    rows = [{"bits": point["bits"], "kl": point["predicted_kl"], "kind": "predicted", "what": "best choice"} for point in mixed.get("curve", ())]
    points = [{"kind": "one scheme", "what": own["scheme"], **own} for own in mixed.get("uniform", ())]
    if mixed:
        points.append({"kind": "chosen", "what": "this result", **{key: mixed.get(key) for key in ("bits", "predicted_kl", "measured_kl")}})
    for point in points:
        rows.append({"bits": point["bits"], "kl": point["predicted_kl"], "kind": point["kind"], "what": point["what"]})
        if point.get("measured_kl") is not None:
            rows.append({"bits": point["bits"], "kl": point["measured_kl"], "kind": "measured", "what": point["what"]})
    return rows


def schemes(summary: dict[str, Any]) -> dict[str, int]:
    """The number of modules by scheme."""
    counts: dict[str, int] = {}
    for module in summary.get("modules", []):
        counts[module["scheme"]] = counts.get(module["scheme"], 0) + 1
    return counts
