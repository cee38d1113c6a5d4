"""The exceptions of layerpress/base/error.h. A message is one line: `[room.function] where: what; what to do`."""

from __future__ import annotations

import builtins


class Error(Exception):
    """Base of all exceptions that Layerpress raises."""


class UsageError(Error, ValueError):
    """Something impossible was asked for."""


class IoError(Error, OSError):
    """A file or folder cannot be opened, read or written."""


class CheckpointError(Error):
    """The contents of a model folder are damaged or unsupported."""


class DamagedWeightsError(CheckpointError):
    """A model's weights hold values that compression cannot handle, such as NaN."""


class RecipeError(Error, ValueError):
    """A recipe is malformed or names something unknown."""


class DataError(Error):
    """Calibration or evaluation data cannot be used."""


class MemoryError(Error, builtins.MemoryError):
    """The work does not fit in memory."""


class DistributedError(Error):
    """Ranks cannot agree, or one of them failed."""


class InterruptedError(Error, KeyboardInterrupt):
    """Ctrl-C ended the work. What was finished is kept; the same call with resume=True continues."""


class InternalError(Error, RuntimeError):
    """A bug in Layerpress; never caused by input."""
