"""The faults that the helper reports in one line, with the exit code of each."""

from layerpress_frame.faults import Fault, one_line

__all__ = ["DataError", "MissingPackageError", "PrepareError", "one_line"]


class PrepareError(Fault):
    """An expected kind of fault. The text says what, where and what to do."""


class DataError(PrepareError):
    """The request, the dataset or the checkpoint's tokenizer files are at fault."""

    exit_code = 2


class MissingPackageError(PrepareError):
    """A package that this input needs is not installed."""

    def __init__(self, package: str, purpose: str, fault: Exception):
        super().__init__(
            f"{purpose} needs the Python package '{package}', which does not load ({fault}): "
            f"install it with: pip install {package}"
        )
