"""The faults that the helper reports in one line, with the exit code of each."""


class PrepareError(Exception):
    """An expected kind of fault. The text says what, where and what to do."""

    exit_code = 1


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


def one_line(fault: object, limit: int = 400) -> str:
    """Joins a message that may span lines into one, cut to `limit` characters."""
    text = " ".join(str(fault).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."
