"""The faults that the helper reports in one line."""


class ExportError(Exception):
    """An expected kind of fault. The text says what, where and what to do."""


def one_line(fault: object, limit: int = 600) -> str:
    """Joins a message that may span lines into one, cut to `limit` characters."""
    text = " ".join(str(fault).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
