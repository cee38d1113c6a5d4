"""Results: dictionaries that show themselves as tables, in notebooks with bars."""

from __future__ import annotations

import html
from typing import Any, Iterable, Sequence


class Report(dict):
    """A result: the JSON that the program gives, its members also as attributes."""

    title = ""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no member {name}") from None

    def facts(self) -> list[tuple[str, str]]:
        """What describes the whole."""
        return [(name, str(value)) for name, value in self.items() if isinstance(value, (str, int, float))]

    def table(self) -> tuple[Sequence[str], list[Sequence[Any]]]:
        """Column heads and rows."""
        return (), []

    def shares(self) -> list[float]:
        """For each row of the table, the length of its bar, from 0 to 1; empty: no bars."""
        return []

    def __str__(self) -> str:
        lines = [f"{name:<24}{value}" for name, value in self.facts()]
        head, rows = self.table()
        cells = [[str(cell) for cell in row] for row in (head, *rows)] if rows else []
        widths = [max(len(row[column]) for row in cells) for column in range(len(head))] if cells else []
        lines += [""] if lines and cells else []
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in cells]
        return "\n".join(lines) or repr(self)

    def _repr_html_(self) -> str:
        head, rows = self.table()
        parts = [f"<b>{html.escape(self.title)}</b>", _table((), self.facts(), [])]
        if rows:
            parts.append(_table(head, rows, self.shares()))
        return "\n".join(parts)


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]], shares: list[float]) -> str:
    def line(cells: Sequence[Any], tag: str) -> str:
        return "".join(f"<{tag} style='text-align:left'>{html.escape(str(cell))}</{tag}>" for cell in cells)

    text = f"<tr>{line(head, 'th')}{'<th></th>' if shares else ''}</tr>" if head else ""
    for index, row in enumerate(rows):
        bar = ""
        if shares:
            width = round(160 * min(max(shares[index], 0.0), 1.0))
            bar = f"<td style='min-width:165px'><div style='width:{width}px;height:0.8em;background:#4c78a8'></div></td>"
        text += f"<tr>{line(row, 'td')}{bar}</tr>"
    return f"<table>{text}</table>"


def bytes_text(count: float) -> str:
    """As the program shows sizes: "1.21 GiB"."""
    unit = 0
    while count >= 999.5 and unit < 4:
        count /= 1024
        unit += 1
    return f"{count:.{0 if unit == 0 else 2 if count < 9.995 else 1}f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def _relative(values: list[float]) -> list[float]:
    largest = max(values, default=0)
    return [value / largest for value in values] if largest > 0 else []


class Summary(Report):
    """What oneshot() did. `details` is what the program's --summary writes."""

    title = "Compressed model"

    def facts(self):
        details = self["details"]
        if self["already_complete"] or not details:  # only the first rank has the details
            return [("output", self["output"])]
        before, after = details["source_bytes"], self["output_bytes"]
        worst = ", ".join(f"{' '.join(group['modules'])} {group.get('relative_output_error', group.get('weight_error')):.4f}"
                          for group in details["worst_modules"])
        modules = f"{self['modules']} compressed, {self['fallbacks']} with a fallback" if self["modules"] else "none compressed"
        facts = [("output", self["output"]), ("scheme", details["scheme"]), ("modules", modules),
                ("size of the weights", f"{bytes_text(before)} -> {bytes_text(after)} ({details['size_change']})"),
                ("worst modules", worst), ("seconds", f"{self['seconds']:.1f}"),
                ("peak memory", bytes_text(max(rank["peak_anonymous_bytes"] for rank in details["ranks"]))),
                ("serve it", details["serving"]["command"]), ("it needs", details["serving"]["hardware"])]
        return [(name, value) for name, value in facts if value]

    def table(self):
        return ("module", "scheme", "relative error of the weight"), [
            (module["module"], module["scheme"], _number(module.get("weight_error"))) for module in self._modules()]

    def shares(self):
        return _relative([module.get("weight_error") or 0 for module in self._modules()])

    def _modules(self) -> list[dict]:
        return self["details"].get("modules") or []


def _number(value: Any) -> str:
    return "" if value is None else f"{value:.5f}"


class Plan(Report):
    """Memory and time that a run would take."""

    title = "Plan"

    def facts(self):
        return [("peak memory", bytes_text(self["peak_bytes"])), ("smallest budget", bytes_text(self["smallest_budget_bytes"])),
                ("samples", self["samples"]), ("tokens", self["tokens"]), ("batches", self["batches"]),
                ("estimated seconds", f"{self['estimated_seconds']:.0f}")]

    def table(self):
        return ("subgraph", "mode", "weights", "peak", "seconds"), [
            (part["name"], part["mode"], bytes_text(part["weight_bytes"]), bytes_text(part["peak_bytes"]),
             f"{part['seconds']:.1f}") for part in self["subgraphs"]]

    def shares(self):
        return _relative([part["peak_bytes"] for part in self["subgraphs"]])


class Inspection(Report):
    """A model as the pipelines see it."""

    title = "Model"

    def facts(self):
        return [("model", self["model"]), ("architecture", self["architecture"]), ("parameters", f"{self['parameters']:,}"),
                ("size", bytes_text(self["bytes"])), ("quantization", self["quantization"] or "none")]

    def table(self):
        return ("subgraph", "parameters", "size", "linear groups"), [
            (part["name"], f"{part['parameters']:,}", bytes_text(part["bytes"]), len(part["linear_groups"]))
            for part in self["subgraphs"]]

    def shares(self):
        return _relative([part["bytes"] for part in self["subgraphs"]])


class Sensitivity(Report):
    """The output error of every linear in each scheme."""

    title = "Sensitivity"

    def facts(self):
        return [("model", self["model"]), ("samples", self["samples"]), ("tokens", self["tokens"])]

    def table(self):
        return ("relative output error of", *self["order"]), [
            (module["module"], *(_number(module["schemes"][scheme]["error"]) for scheme in self["order"])) for module in self["modules"]]


class Verification(Report):
    """What the checks of a checkpoint found."""

    title = "Verification"

    def facts(self):
        figures = {**self, "size of the weights": bytes_text(self["bytes"])} if "bytes" in self else self
        shown = [(name, figures[name]) for name in ("model", "tensors", "size of the weights", "quantized", "format") if name in figures]
        return [*shown, ("faults", len(self["faults"]) or "none"), ("warnings", len(self["warnings"]) or "none"),
                ("seconds", f"{self['seconds']:.1f}")]

    def table(self):
        return ("", "check", "where", "what"), [
            (kind, found["check"], found["where"], found["what"])
            for kind, all_found in (("fault", self["faults"]), ("warning", self["warnings"])) for found in all_found]


class Evaluation(Report):
    """Figures of a model on text."""

    title = "Evaluation"

    def facts(self):
        return [(name.replace("_", " "), value) for name, value in self.items() if name not in ("layers", "tasks")] + [
            (f"{task} {metric}", value) for task, figures in (self.get("tasks") or {}).items()
            for metric, value in figures["metrics"].items()]

    def table(self):
        return ("layer", "relative error"), [(layer["name"], _number(layer["relative_error"])) for layer in self._layers()]

    def shares(self):
        return _relative([layer["relative_error"] for layer in self._layers()])

    def _layers(self) -> list[dict]:
        return self.get("layers") or []


class MixedPrecision(Report):
    """A scheme for every linear. `recipe` is the text for oneshot(recipe=...), which also takes this object itself."""

    title = "Mixed precision"

    def facts(self) -> list[tuple[str, str]]:
        vocabulary = [("vocabulary", self["vocabulary"]["scheme"])] if self.get("vocabulary") else []
        return [("bits per weight", f"{self['bits']:.3f}"), *vocabulary, ("predicted KL divergence", f"{self['predicted_kl']:.4g}")]

    def table(self) -> tuple[Sequence[str], list[Sequence[Any]]]:
        return (("scheme", "modules", "of the weights"),
                [(own["scheme"], own["modules"], f"{own['share']:.1%}") for own in self["schemes"]])

    def shares(self) -> list[float]:
        return [own["share"] for own in self["schemes"]]
