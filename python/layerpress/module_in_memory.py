"""Modules of torch in memory that are no transformers models: any that torch.export takes."""

from __future__ import annotations

import json
import sys
import weakref
from pathlib import Path
from typing import Any

from . import _native
from .errors import CheckpointError, UsageError
from .helper import import_helper
from .progress import logger
from .saved_result import ResultSaver
from .temporary_folder import TemporaryFolder


def is_module(value: Any) -> bool:
    """Whether this is a module of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


class ModuleInMemory:
    """A module in memory, as the extension module takes it: its graph is exported, its tensors stay where they lie."""

    def __init__(self, module: Any):
        self.module, self.name = module, type(module).__name__
        meta = [name for name, tensor in module.state_dict().items() if tensor.is_meta]
        if meta:
            raise UsageError(f"[python.oneshot] {meta[0]} is on the meta device: load the module's weights")
        folder = TemporaryFolder()
        self._finalizer = weakref.finalize(self, folder.remove)
        names = _exported(module, folder.path)
        state = module.state_dict()
        self.native = _native.model_in_memory(json.dumps(self._config()), {name: state[name].detach() for name in names}, str(folder.path), "")

    def _config(self) -> dict:
        dtype = next((each.dtype for each in self.module.parameters() if each.is_floating_point()), None)
        return {"model_type": self.name.lower(), "architectures": [self.name], "dtype": str(dtype).removeprefix("torch.")}

    def tokenizer(self) -> Any:
        raise UsageError(f"[python.oneshot] {self.name}: a module has no tokenizer; pass tokenizer=, or rows with input_ids")

    def stand_for(self, output: Path, tokenizer: Any, writes: bool, keeper: Any) -> None:
        """Gives the module the values of its result, and a save_pretrained() that writes the result."""
        if writes and tokenizer is not None:
            tokenizer.save_pretrained(output)
        changed = _native.load_result(self.native, str(output))
        logger.info("%d parameters of the module have the values of the result", len(changed))
        self.module.save_pretrained = ResultSaver(self.module, output, writes, keeper)


def _exported(module: Any, folder: Path) -> list[str]:
    """Writes the module's graph into the folder; returns the names of its tensors, each once."""
    import_helper()
    from layerpress_graph.errors import ExportError
    from layerpress_graph.modules import export_module, stored_names

    try:
        export_module(module, folder)
    except ExportError as fault:
        raise CheckpointError(f"[graph.export] {fault}") from None
    return sorted(set(stored_names(module).values()))
