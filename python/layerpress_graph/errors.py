"""The faults that the helper reports in one line."""

from layerpress_frame.faults import Fault, one_line

__all__ = ["ExportError", "one_line"]


class ExportError(Fault):
    """An expected kind of fault. The text says what, where and what to do."""
