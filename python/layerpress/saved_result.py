"""save_pretrained() of a model in memory that stands for the result of a run: it writes the result's files."""

from __future__ import annotations

import json
import os
import re
import shutil
import weakref
from pathlib import Path
from typing import Any, Iterator, Optional

from .errors import UsageError
from .progress import logger
from .ranks import current_ranks

_WEIGHTS = re.compile(r"(model|pytorch_model)(-\w+)*\.(safetensors|bin)(\.index\.json)?")
# LLM Compressor's and transformers' arguments that say nothing about files that are written already.
_WITHOUT_EFFECT = {"disable_sparse_compression", "distributed_checkpoint", "safe_serialization", "save_original_format", "save_peft_format",
                   "skip_sparsity_compression_stats", "sparsity_config", "token"}
_OF_THE_RUN = {"max_shard_size": "max_shard_size", "quantization_format": "its recipe"}  # what says it before
_OF_UPLOADS = "50GB"  # the max_shard_size that push_to_hub() of transformers passes whether it is asked for or not
_REFUSED = {"push_to_hub": "save the result to a folder and upload that", "state_dict": "the result has values of its own",
            "variant": "no reader of the result knows variants"}


class ResultSaver:
    """Takes the place of a model's save_pretrained(). It keeps what `keeper` keeps, such as a temporary folder, as long as the model or a
    copy of it lives."""

    def __init__(self, model: Any, output: Path, writes: bool, keeper: Any):
        self._model = weakref.ref(model)  # no cycle: a large model goes when its last name does
        self._output, self._writes, self._keeper = Path(os.path.abspath(output)), writes, keeper
        self._versions: Optional[dict] = {name: (id(parameter), _version(parameter)) for name, parameter in _named(model)}
        self._sums: dict[str, Optional[tuple]] = _all_sums(model)  # None: it was changed
        self._generation, self._config = _generation_of(model), _config_of(model)

    def current_output(self) -> Optional[Path]:
        """The result's folder, if it is there and the model still has its values, on all ranks."""
        model = self._model()
        ranks = current_ranks()
        is_shared = ranks is not None and ranks.size > 1
        changed = self._has_other_values if is_shared else lambda model: any(True for _ in self._changed(model))
        has = model is not None and self._output.is_dir() and not changed(model)
        if is_shared:
            has = set(ranks.all_gather_text(str(has))) == {"True"}
        return self._output if has else None

    def _has_other_values(self, model: Any) -> bool:
        """For ranks, between which weights are sent: see _refuse_changes()."""
        now = dict(_named(model))
        return any(sums is None or name not in now or (not now[name].is_meta and sums != _sums(now[name])) for name, sums in self._sums.items())

    def __call__(self, save_directory: Any, quantization_format: Optional[str] = None, save_compressed: bool = True, *,
                 is_main_process: bool = True, **options: Any) -> None:
        model = self._model()
        if not save_compressed:
            dense = getattr(type(model), "save_pretrained", None)
            if dense is None:
                raise UsageError("[python.save] save_compressed: a torch module has no other form; leave it out")
            return dense(model, save_directory, is_main_process=is_main_process, **options)
        _check({"quantization_format": quantization_format, **options})
        self._refuse_changes(model)
        if self._writes and is_main_process:
            target = Path(os.fspath(save_directory))
            copy_result(self._output, target)
            if model is not None:
                self._write_settings(model, target)
        return None

    def has_other_settings(self) -> bool:
        """Whether the model's configurations were changed since."""
        model = self._model()
        return model is not None and (_generation_of(model), _config_of(model)) != (self._generation, self._config)

    def linked_with_settings(self, folder: Path) -> Path:
        """The result in another folder, of links, with the model's configurations as they are now."""
        folder.mkdir(parents=True)
        for file in self._output.iterdir():
            if file.name in ("config.json", "generation_config.json"):
                shutil.copyfile(file, folder / file.name)
            else:
                os.symlink(file, folder / file.name)
        self._write_settings(self._model(), folder)
        return folder

    def _write_settings(self, model: Any, target: Path) -> None:
        """What was changed in the model's configurations since."""
        if _generation_of(model) != self._generation:
            model.generation_config.save_pretrained(target)
        now = _config_of(model)
        if now != self._config:
            file = target / "config.json"
            config = json.loads(file.read_text(encoding="utf-8"))
            _follow(config, self._config, now)
            file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def __getstate__(self) -> dict[str, Any]:
        """For pickle, together with the model. A copy in another process finds the result as long as it is there."""
        model = self._model()
        sums = {**(self._sums if model is None else _all_sums(model)), **dict.fromkeys(self._changed(model))}
        return {**vars(self), "_model": model, "_keeper": None, "_versions": None, "_sums": sums}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._model = weakref.ref(state["_model"])

    def __deepcopy__(self, memo: dict) -> ResultSaver:
        """That of the copy."""
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        model = self._model()
        if model is not None and id(model) in memo:
            other._model = weakref.ref(memo[id(model)])
            other._sums = {**self._sums, **dict.fromkeys(self._changed(model))}
            if self._versions is None:
                return other
            copies = {name: memo.get(id(parameter)) for name, parameter in _named(model)}
            other._versions = {name: (id(parameter), _version(parameter)) for name, parameter in copies.items() if parameter is not None}
        return other

    def _refuse_changes(self, model: Any) -> None:
        """Parameters that were changed in place or replaced by others. What has only moved to a device has new objects with the same values.
        On several ranks nothing is refused: dispatch_model() of compressed-tensors sends every weight from one rank to the others, in
        place."""
        ranks = current_ranks()
        if ranks is not None and ranks.size > 1:
            return
        for name in self._changed(model):
            raise UsageError(f"[python.save] {name} was changed after oneshot(), and the result has the value before: save the model as it is "
                             "with save_compressed=False, or compress it again")

    def _changed(self, model: Any) -> Iterator[str]:
        if model is None:  # its last name was in the expression that saves it
            yield from (name for name, known in self._sums.items() if known is None)
            return
        now = dict(_named(model))
        for name, sums in self._sums.items():
            parameter = now.get(name)
            known = None if self._versions is None else self._versions.get(name)  # a copy by pickle counts anew
            if parameter is None and sums is not None and _is_unpacked(name, now):
                continue
            if sums is None or parameter is None:
                yield name
            elif known is not None and known[0] == id(parameter):
                if known[1] != _version(parameter):
                    yield name
            elif not parameter.is_meta and sums != _sums(parameter):  # those on the meta device are on disk
                yield name


def result_of(model: Any) -> Optional[Path]:
    """The folder of the result that oneshot() made of a model in memory, if the model has its values. Otherwise a warning says that it is no
    part of what follows; several ranks cannot take such a model."""
    saver = vars(model).get("save_pretrained")
    if not isinstance(saver, ResultSaver):
        return None
    output = saver.current_output()
    ranks = current_ranks()
    if output is None and ranks is not None and ranks.size > 1:  # which read a folder instead of the model
        raise UsageError("[python.oneshot] model: was changed after it was compressed, or its result is gone; on several ranks only a model as it is "
                         "stored can be compressed: save it first")
    if output is None:
        logger.warning("the model was changed after it was compressed, or its result is gone, so that its values are taken as they are; what was "
                       "compressed before is not stored compressed by this call")
    return output


def _check(options: dict[str, Any]) -> None:
    for name, value in options.items():
        if name in _REFUSED:
            if value:
                raise UsageError(f"[python.save] {name}: {_REFUSED[name]}")
        elif name in _OF_THE_RUN:
            if value is not None and (name, value) != ("max_shard_size", _OF_UPLOADS):
                logger.warning("[python.save] %s has no effect: the result is written; %s of oneshot() says it", name, _OF_THE_RUN[name])
        elif name not in _WITHOUT_EFFECT:
            raise UsageError(f"[python.save] unknown argument {name}")


def _version(parameter: Any) -> int:
    """How often it was changed in place; inference tensors do not count."""
    return -1 if parameter.is_inference() else parameter._version


def _generation_of(model: Any) -> Optional[dict]:
    generation = getattr(model, "generation_config", None)
    return None if generation is None else generation.to_dict()


def _config_of(model: Any) -> dict[str, Any]:
    """As config.json would have it, without what describes the stored weights."""
    config: Any = getattr(model, "config", None)
    values = json.loads(config.to_json_string(use_diff=False)) if hasattr(config, "to_json_string") else {}
    return {name: value for name, value in values.items() if name not in ("dtype", "torch_dtype", "quantization_config")}


def _follow(config: dict[str, Any], before: dict[str, Any], now: dict[str, Any]) -> None:
    """Changes a config as another one was changed, also in sections."""
    for name in before.keys() - now.keys():
        config.pop(name, None)
    for name, value in now.items():
        old = before.get(name)
        if isinstance(value, dict) and isinstance(old, dict) and isinstance(config.get(name), dict):
            _follow(config[name], old, value)
        elif name not in before or old != value:
            config[name] = value


def _named(model: Any) -> Any:
    """The parameters under all of their names."""
    return model.named_parameters(remove_duplicate=False)


def _is_unpacked(name: str, now: dict[str, Any]) -> bool:
    """Whether a part of a compressed weight is gone because compressed-tensors has made the weight of it, as the first forward pass does."""
    module, _, part = name.rpartition(".")
    return part.startswith("weight_") and f"{module}.weight" in now


def _all_sums(model: Any) -> dict[str, Optional[tuple]]:
    known: dict[int, Optional[tuple]] = {}
    for _, parameter in _named(model):
        if id(parameter) not in known:
            known[id(parameter)] = _sums(parameter)
    return {name: known[id(parameter)] for name, parameter in _named(model)}


_AT_ONCE = 29_000 * 11 * 13  # elements


def _sums(parameter: Any) -> tuple:
    """What parameters with the same values have in common on all devices: shape, dtype, and sums of the elements' bits, of all elements and
    of some in distances that no width divides."""
    import torch

    if parameter.is_meta:
        return (*parameter.shape, str(parameter.dtype))
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    flat = parameter.detach().contiguous().reshape(-1).view(kinds[parameter.element_size()])
    sums = [0, 0, 0]
    for part in flat.split(_AT_ONCE):
        for place, step in enumerate((1, 11, 13)):
            sums[place] += int(part[::step].sum(dtype=torch.int64))
    return (*parameter.shape, str(parameter.dtype), *sums)


def copy_result(source: Path, target: Path) -> None:
    """Writes a finished output to a folder; weights are linked where that is possible. Weights of another checkpoint there are removed,
    because readers would take some of them."""
    if target.exists() and not target.is_dir():
        raise UsageError(f"[python.save] {target} is not a folder: name a folder")
    if not source.is_dir():
        raise UsageError(f"[python.save] the result is gone with the process that made it ({source}): pass output_dir to oneshot()")
    if target.exists() and os.path.samefile(source, target):
        return
    target.mkdir(parents=True, exist_ok=True)
    files = sorted(source.iterdir())
    written = [(_copied(file, target / f".{file.name}.unfinished"), target / file.name) for file in files]
    for old in target.iterdir():
        if _WEIGHTS.fullmatch(old.name):
            old.unlink()
    for unfinished, place in written:
        os.replace(unfinished, place)
        unfinished.unlink(missing_ok=True)  # two links to one file stay both


def _copied(file: Path, place: Path) -> Path:
    place.unlink(missing_ok=True)
    if file.suffix == ".safetensors":
        try:
            os.link(file, place)
            return place
        except OSError:  # another file system
            pass
    shutil.copyfile(file, place)
    return place
