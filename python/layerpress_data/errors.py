"""The faults that the helper reports in one line, with the exit code of each."""

from __future__ import annotations

from typing import Optional

from layerpress_frame.faults import Fault, one_line

__all__ = ["DataError", "MissingPackageError", "PrepareError", "one_line", "torchvision_fault"]


class PrepareError(Fault):
    """An expected kind of fault. The text says what, where and what to do."""


class DataError(PrepareError):
    """The request, the dataset or the checkpoint's tokenizer files are at fault."""

    exit_code = 2


def torchvision_fault(fault: BaseException) -> Optional[BaseException]:
    """The exception, among those that led to this one, that says something of torchvision; transformers' own may name a class only."""
    found = None
    cause: Optional[BaseException] = fault
    while cause is not None:
        if "torchvision" in str(cause).lower():
            found = cause
        cause = cause.__cause__ or cause.__context__
    return found


class MissingPackageError(PrepareError):
    """A package that this input needs is not installed."""

    def __init__(self, package: str, purpose: str, fault: BaseException):
        if lacking := torchvision_fault(fault):
            package, fault = "torchvision", lacking
        super().__init__(
            f"{purpose} needs the Python package '{package}', which does not load ({fault}): "
            f"install it with: pip install {package}"
        )
