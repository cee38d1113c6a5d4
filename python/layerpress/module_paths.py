"""LLM Compressor's module paths, so that scripts import from the same places. Nothing but this table stands behind them: a finder makes
each module when it is imported.

    python module_paths.py FOLDER     writes the type stubs of these modules below FOLDER
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from pathlib import Path
from types import ModuleType
from typing import Optional, Sequence

_AUTOROUND = "modifiers: AutoRoundModifier; calibration: fix_batch_if_needed"
_AUTOROUND_RANKS = "ranks: get_local_gpu_group_size init_gpu_group_dist"
_AWQ = "modifiers: AWQMapping AWQModifier"
_GPTQ = "modifiers: GPTQModifier"
_SMOOTH = "modifiers: SmoothQuantModifier"
_QUANTIZATION = "modifiers: QuantizationModifier"
_PRUNING = ("modifiers: ConstantPruningModifier MagnitudePruningModifier REAPPruningModifier SparseGPTModifier "
            "WandaPruningModifier")
_MODELS = "loaded_model: dispatch_for_generation; ranks: load_context"
_MOE = "experts: moe_calibration_context replace_modules_for_calibration"
_DEEPSEEK = "model_classes: DeepseekV32ForCausalLM"
_SESSION = "sessions: active_session create_session reset_session"

# Path: "module of this package: names; ...".
PATHS = {
    "core": _SESSION,
    "core.session_functions": _SESSION,
    "datasets": "ranks: get_rank_partition",
    "datasets.utils": "ranks: get_rank_partition",
    "entrypoints": "runs: oneshot; model_free: model_free_ptq",
    "entrypoints.oneshot": "runs: oneshot",
    "entrypoints.model_free": "model_free: model_free_ptq",
    "modeling": _MOE,
    "modeling.deepseekv32": _DEEPSEEK,
    "modeling.deepseekv32.model": _DEEPSEEK,
    "modeling.moe": _MOE,
    "modeling.moe.context": "experts: moe_calibration_context",
    "modeling.prepare": _MOE,
    "modifiers.autoround": f"{_AUTOROUND}; {_AUTOROUND_RANKS}",
    "modifiers.autoround.base": _AUTOROUND,
    "modifiers.autoround.utils": _AUTOROUND_RANKS,
    "modifiers.awq": _AWQ,
    "modifiers.awq.base": _AWQ,
    "modifiers.gptq": _GPTQ,
    "modifiers.gptq.base": _GPTQ,
    "modifiers.logarithmic_equalization": "modifiers: LogarithmicEqualizationModifier",
    "modifiers.logarithmic_equalization.base": "modifiers: LogarithmicEqualizationModifier",
    "modifiers.modifier": "modifiers: Modifier",
    "modifiers.obcq": "modifiers: SparseGPTModifier",
    "modifiers.pruning": _PRUNING,
    "modifiers.pruning.constant": "modifiers: ConstantPruningModifier",
    "modifiers.pruning.constant.base": "modifiers: ConstantPruningModifier",
    "modifiers.pruning.magnitude": "modifiers: MagnitudePruningModifier",
    "modifiers.pruning.magnitude.base": "modifiers: MagnitudePruningModifier",
    "modifiers.pruning.reap": "modifiers: REAPPruningModifier",
    "modifiers.pruning.reap.base": "modifiers: REAPPruningModifier",
    "modifiers.pruning.sparsegpt": "modifiers: SparseGPTModifier",
    "modifiers.pruning.sparsegpt.base": "modifiers: SparseGPTModifier",
    "modifiers.pruning.wanda": "modifiers: WandaPruningModifier",
    "modifiers.pruning.wanda.base": "modifiers: WandaPruningModifier",
    "modifiers.quantization": f"{_GPTQ} QuantizationModifier",
    "modifiers.quantization.gptq": _GPTQ,
    "modifiers.quantization.gptq.base": _GPTQ,
    "modifiers.quantization.quantization": _QUANTIZATION,
    "modifiers.quantization.quantization.base": _QUANTIZATION,
    "modifiers.smoothquant": _SMOOTH,
    "modifiers.smoothquant.base": _SMOOTH,
    "modifiers.transform": f"{_AWQ} QuIPModifier SmoothQuantModifier SpinQuantModifier",
    "modifiers.transform.awq": _AWQ,
    "modifiers.transform.awq.base": _AWQ,
    "modifiers.transform.awq.mappings": "modifiers: AWQMapping",
    "modifiers.transform.quip": "modifiers: QuIPModifier",
    "modifiers.transform.quip.base": "modifiers: QuIPModifier",
    "modifiers.transform.smoothquant": _SMOOTH,
    "modifiers.transform.smoothquant.base": _SMOOTH,
    "modifiers.transform.spinquant": "modifiers: SpinQuantModifier",
    "modifiers.transform.spinquant.base": "modifiers: SpinQuantModifier",
    "recipe": "recipes: Recipe",
    "recipe.recipe": "recipes: Recipe",
    "transformers": "runs: oneshot",
    "utils": _MODELS,
    "utils.dev": _MODELS,
}

# Paths that stand for the inside of LLM Compressor: what to do instead.
ABSENT = {
    "args": "pass the arguments to oneshot() by name",
    "modeling": "Layerpress reads models that transformers has",
    "modifiers": "Layerpress has LLM Compressor's modifiers in the modules that docs/python.md lists",
    "observers": "observers are part of the C++ library; a recipe names them, such as observer='mse'",
    "pipelines": "pipeline='sequential', 'two_pass', 'basic' or 'datafree' of oneshot() chooses one",
    "pytorch": "use torch itself",
    "transformers": "oneshot() and save_pretrained() are all that is needed",
}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the modules of PATHS below `package`."""

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None):
        package, _, place = name.partition(".")
        if package != self._package or not place:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if place in PATHS else None

    def exec_module(self, module: ModuleType) -> None:
        module.__doc__ = "The place where LLM Compressor has these names."
        found = {name: getattr(importlib.import_module(f"{self._package}.{source}"), name)
                 for source, names in origins(module.__name__.partition(".")[2]) for name in names}
        vars(module).update(found, __all__=list(found))


class _LastFinder(importlib.abc.MetaPathFinder):
    """Asked after all others: says what stands for a path that LLM Compressor has and this package has not."""

    def __init__(self, package: str):
        self._package = package

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None):
        package, _, place = name.partition(".")
        hint = ABSENT.get(place.partition(".")[0])
        if package == self._package and hint is not None:
            raise ModuleNotFoundError(f"[python.import] {name} is a part of LLM Compressor that Layerpress has not; {hint}", name=name)
        return None


def origins(place: str) -> list[tuple[str, list[str]]]:
    """Of a path, the modules of this package and the names that it takes from each."""
    parts = (part.partition(":") for part in PATHS[place].split(";"))
    return [(source.strip(), names.split()) for source, _, names in parts]


def install(package: str) -> None:
    """Lets `import package.PATH` find the modules."""
    sys.meta_path.insert(0, _Finder(package))
    sys.meta_path.append(_LastFinder(package))


def write_stubs(folder: Path) -> None:
    """Type stubs, for checkers and editors, which do not run the finder."""
    for place in PATHS:
        inner = any(other.startswith(place + ".") for other in PATHS)
        file = folder / Path(*place.split(".")) / "__init__.pyi" if inner else (folder / Path(*place.split("."))).with_suffix(".pyi")
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = [f"from layerpress.{source} import {name} as {name}" for source, names in origins(place) for name in names]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_stubs(Path(sys.argv[1]))
