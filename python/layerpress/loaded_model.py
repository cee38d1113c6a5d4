"""Transformers models in memory: their parameters are compressed where they lie, and the model stands for the result afterwards."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import weakref
from pathlib import Path
from typing import Any, Iterator, Optional

from . import _native
from .calibration import saved_tokenizer
from .errors import UsageError
from .image_rows import takes_images
from .progress import logger
from .saved_result import ResultSaver
from .temporary_folder import TemporaryFolder


def is_model(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "config")


def code_folder(model: Any) -> Optional[Path]:
    """Where the Python code is that came with the model's checkpoint (trust_remote_code); None for a class of transformers."""
    modules = (kind.__module__ for kind in type(model).__mro__ if kind.__module__.startswith("transformers_modules."))
    file = getattr(sys.modules.get(next(modules, "")), "__file__", None)
    return Path(file).parent if file else None


def _class_name(model: Any) -> str:
    """The class that the config describes: of a subclass in a script that of transformers."""
    kinds = (kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith(("transformers.", "transformers_modules.")))
    return next(kinds, type(model).__name__)


class LoadedModel:
    """A model in memory, as the extension module takes it."""

    def __init__(self, model: Any, download: bool = False):
        """`download`: whether its tokenizer may be fetched."""
        self.model, self._download = model, download
        self._origin = str(getattr(model.config, "_name_or_path", ""))
        self.name = self._origin or type(model).__name__
        _warn_of_code(model)
        self._hold(model)

    def _hold(self, model: Any) -> None:
        tensors = _tensors(model)
        # The program reads contiguous memory. The copies of what is laid out otherwise live as long as this.
        self._copied = [(name, tensor, tensor.contiguous()) for name, tensor in tensors.items() if not tensor.is_contiguous()]
        tensors.update((name, copied) for name, _, copied in self._copied)
        config = _config(model)
        if "quantization_config" not in config and getattr(model.config, "quantization_config", None) is not None:
            logger.warning("compressed-tensors has made plain weights of the compressed ones, as at the first forward pass; what the recipe does "
                           "not compress is stored plainly")
        self.native = _native.model_in_memory(json.dumps(config), tensors, "", str(code_folder(model) or ""))

    @property
    def config(self) -> Any:
        return self.model.config

    def tokenizer(self) -> Any:
        """The tokenizer of the model's own folder, or the processor of a model that takes images."""
        if not self._origin:  # the hub may have something else of the class's name
            raise UsageError(f"[python.oneshot] {self.name}: a model that was not loaded from a folder or an id has no tokenizer; pass "
                             "tokenizer= or tokenized data")
        return tokenizer_of(self._origin, takes_images(self.config), self._download)

    def stand_for(self, output: Path, tokenizer: Any, writes: bool, keeper: Any) -> None:
        """Gives the model the values of its result, and lets save_pretrained() write the result. Of several ranks one `writes`. `keeper`: what
        keeps the result's folder."""
        if writes:
            if tokenizer is None and self._origin:
                with contextlib.suppress(UsageError):
                    tokenizer = self.tokenizer()
            _save_companions(self.model, tokenizer, output)
            if (code := code_folder(self.model)) is not None:
                for file in code.glob("*.py"):
                    if file.name != "__init__.py":  # of the cache of modules
                        shutil.copyfile(file, output / file.name)
        before, after = _config(self.model), _config_of_result(self.model, output)
        if _is_untied(before, after) or _is_untied(self.model.config.to_dict(), after):
            _untie(self.model)
            self._hold(self.model)
        changes = _changes(before, after)
        if changes:
            new = _take_shapes(self.model, changes)
            self._hold(self.model)
            for tensor in (*new, *(copied for _, _, copied in self._copied)):
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
        changed = _native.load_result(self.native, str(output))
        for _, tensor, copied in self._copied:
            tensor.copy_(copied)
        if changes:
            _refuse_unwritten(self.model, output)
        logger.info("%d parameters of the model in memory have the values of the result", len(changed))
        self.model.save_pretrained = ResultSaver(self.model, output, writes, keeper)


def tokenizer_of(name: str, images: bool, download: bool = False) -> Any:
    """The tokenizer of a folder or an id, such as ORG/NAME@REVISION; with `images` the processor, if there is one. Runs no code of the
    checkpoint, and fetches nothing without `download`."""
    from transformers import AutoProcessor, AutoTokenizer

    place, _, revision = (name, "", "") if os.path.exists(name) else name.partition("@")
    for kind in (AutoProcessor, AutoTokenizer) if images else (AutoTokenizer, AutoProcessor):
        try:
            return kind.from_pretrained(place, revision=revision or "main", local_files_only=not download, trust_remote_code=False)
        except (OSError, ValueError, KeyError, NotImplementedError):
            continue
        except Exception as fault:  # of the network, of a class of the package's
            reason = (str(fault).splitlines() or [""])[0]
            raise UsageError(f"[python.oneshot] {name}: its tokenizer cannot be loaded ({type(fault).__name__}: {reason}); pass tokenizer= or "
                             "tokenized data") from None
    hint = "" if download or os.path.exists(name) else ", or download=True, which fetches it"
    raise UsageError(f"[python.oneshot] {name}: no tokenizer is there for it; pass tokenizer= or tokenized data{hint}")


def dispatch_for_generation(model: Any, *_: Any, **__: Any) -> Any:
    """Moves a model to the device that generates: a GPU where torch has one."""
    import torch

    return model.to("cuda") if torch.cuda.is_available() else model


class WaitingFolder:
    """A folder in the temporary folder where the result of a model waits for save_pretrained(), as long as this object exists. Its name is the
    model's, which another run would write into the card of its own result."""

    def __init__(self, model: Any = None) -> None:
        folder = TemporaryFolder()
        known = str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")
        self.path = folder.path / (re.sub(r"[^\w.-]+", "-", Path(known).name).strip(".-") or "result")
        self.remove = weakref.finalize(self, folder.remove)
        logger.info("the result waits in %s until save_pretrained() is called; TMPDIR says where such folders are", folder.path)

    def keep(self) -> Path:
        """Moves the result to a folder that nothing removes."""
        return Path(shutil.move(self.path, tempfile.mkdtemp(prefix="layerpress-result-")))


# Packages whose modules, hooks and wrapped functions compute what the config describes.
_KNOWN_CODE = {"accelerate", "compressed_tensors", "kernels", "torch", "transformers", "transformers_modules"}


def _warn_of_code(model: Any) -> None:
    """Layerpress computes the graph of the config's architecture, in which other code of the model in memory has no part."""
    def is_foreign(code: Any) -> bool:
        return str(getattr(getattr(code, "func", code), "__module__", "torch")).split(".")[0] not in _KNOWN_CODE

    described = _described(model)
    changed = []
    for name, module in model.named_modules():
        own = [] if hasattr(module, "_hf_hook") else [code for code in (vars(module).get("forward"),) if code is not None]
        if any(map(is_foreign, [type(module), *own, *module._forward_hooks.values(), *module._forward_pre_hooks.values()])) or (
                name in described and _is_other(module, described[name])):
            changed.append(name or type(module).__name__)
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        logger.warning("%s%s: hooks, other forward functions, other classes and other settings of modules have no effect, because the graph that "
                       "the config describes is computed; write their effect into the weights or the config before, if it is to count",
                       changed[0], more)


def _described(model: Any) -> dict[str, Any]:
    """The modules that transformers makes of the model's config now, without weights; none if it cannot make them."""
    import torch

    if not type(model).__module__.startswith("transformers."):
        return {}
    level = logging.getLogger("transformers").level
    logging.getLogger("transformers").setLevel(logging.ERROR)
    try:
        with torch.device("meta"):
            return dict(type(model)._from_config(copy.deepcopy(model.config)).named_modules())
    except Exception as fault:  # any that a class of transformers may raise
        logger.debug("the modules of %s are not compared with its config: %s", type(model).__name__, fault)
        return {}
    finally:
        logging.getLogger("transformers").setLevel(level)


def _is_other(module: Any, described: Any) -> bool:
    """Whether a module of torch or transformers computes something else than the one that the config describes."""
    kinds = [f"{type(each).__module__}.{type(each).__qualname__}" for each in (module, described)]
    if not all(kind.startswith(("torch.", "transformers.")) for kind in kinds):
        return False
    wanted = _settings(described)
    return kinds[0] != kinds[1] or any(wanted.get(name, value) != value for name, value in _settings(module).items())


def _settings(module: Any) -> dict[str, Any]:
    """Numbers such as the epsilon of a norm; not those that matter in training only, nor a size that resizing the embeddings leaves as it was."""
    return {name: value for name, value in vars(module).items()
            if type(value) in (int, float) and name not in ("p", "padding_idx", "vocab_size") and "cached" not in name and "dropout" not in name}


def _config(model: Any) -> dict:
    """config.json as save_pretrained() writes it."""
    config = copy.deepcopy(model.config)
    config.architectures = [_class_name(model)]
    values = json.loads(config.to_json_string())
    if (values.get("quantization_config") or {}).get("quantization_status") == "decompressed":
        del values["quantization_config"]  # which still describes what the files have
    if isinstance(values.get("auto_map"), dict):  # of a model from the hub "ORG/NAME--module.Class"
        values["auto_map"] = {name: place.rpartition("--")[2] if isinstance(place, str) else place for name, place in values["auto_map"].items()}
    dtype = next((parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()), None)
    if dtype is not None:
        values["dtype"] = str(dtype).removeprefix("torch.")
    if (tied := _is_tied(model)) is not None and tied != bool(getattr(model.config.get_text_config(), "tie_word_embeddings", False)):
        for part in (values, values.get("text_config")):
            if isinstance(part, dict):
                part["tie_word_embeddings"] = tied
    return values


def _is_tied(model: Any) -> Optional[bool]:
    """Whether the head has the embedding's weight, whatever the config says; None: it has no head."""
    head, embedding = (getattr(part, "weight", None) for part in (model.get_output_embeddings(), model.get_input_embeddings()))
    if head is None or embedding is None or head.shape != embedding.shape:
        return None
    return head is embedding or head.data_ptr() == embedding.data_ptr() or bool(head.equal(embedding))


_OF_FILES = ("architectures", "dtype", "quantization_config", "tie_word_embeddings", "transformers_version")


def _config_of_result(model: Any, output: Path) -> dict:
    """Of a model that is the language part of the result, that part's."""
    whole = json.loads((output / "config.json").read_text(encoding="utf-8"))
    kind = model.config.model_type
    parts = (value for value in whole.values() if isinstance(value, dict) and value.get("model_type") == kind)
    return whole if whole.get("model_type") == kind else next(parts, {})


def _changes(before: dict, after: dict) -> dict:
    """What a result's config says otherwise of a model's sizes, which are integers."""
    changed: dict = {}
    for key, value in after.items():
        if key in _OF_FILES or key not in before or before[key] == value:
            continue
        if type(value) is int:
            changed[key] = value
        elif isinstance(value, dict) and isinstance(before[key], dict) and (inner := _changes(before[key], value)):
            changed[key] = inner
    return changed


def _is_untied(before: dict, after: dict) -> bool:
    """Whether only the result has a head with a weight apart from the embedding's."""
    def says(config: dict) -> list:
        return [part.get("tie_word_embeddings") for part in (config, config.get("text_config") or {})]

    return any(new is False and old is not False for old, new in zip(says(before), says(after)))


def _untie(model: Any) -> None:
    import torch

    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is embedding.weight:
        head.weight = torch.nn.Parameter(head.weight.detach().clone(), head.weight.requires_grad)
    for config in (model.config, model.config.get_text_config()):
        config.tie_word_embeddings = False
    model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)


def _take_shapes(model: Any, changes: dict) -> list[Any]:
    """Makes a model the one that a changed config describes, which has fewer experts. What has the same shape in both stays where it
    is. The others are returned; they are random, so that no two parts of them are equal."""
    import torch
    from transformers.initialization import no_init_weights

    described = copy.deepcopy(model.config)
    _set(described, changes)
    with no_init_weights():
        smaller = type(model)._from_config(described, dtype=model.dtype, attn_implementation=model.config._attn_implementation)
    before = model.state_dict()
    new = {name: torch.rand(tensor.shape).to(tensor.dtype) for name, tensor in smaller.state_dict().items()
           if name not in before or before[name].shape != tensor.shape}
    smaller.load_state_dict({name: new.get(name, before.get(name)) for name in smaller.state_dict()}, assign=True)
    smaller.tie_weights()
    smaller.train(model.training)
    vars(model).update((name, value) for name, value in vars(smaller).items() if name != "generation_config")
    return list(new.values())


def _set(config: Any, changes: dict) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and hasattr(getattr(config, key, None), "to_dict"):
            _set(getattr(config, key), value)
        else:
            setattr(config, key, value)


def _refuse_unwritten(model: Any, output: Path) -> None:
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and tensor.isnan().any():
            raise UsageError(f"[python.oneshot] {output} has no values for {name}, which has another shape in the model in memory: pass the "
                             "model's folder or id")


def _tensors(model: Any) -> dict[str, Any]:
    """The parameters by name; one that several modules share only under its first name."""
    found: dict[str, Any] = {}
    places: dict[tuple, str] = {}
    for name, tensor in _under_stored_names(model):
        if tensor.is_meta:
            raise UsageError(f"[python.oneshot] {name} is on the meta device: load the model's weights, or pass its folder or id")
        place = (tensor.data_ptr(), tuple(tensor.shape))
        if tensor.numel() and place in places:
            continue
        places[place] = name
        found[name] = tensor.detach()
    return found


def _under_stored_names(model: Any) -> Iterator[tuple[str, Any]]:
    """The parameters under the names of checkpoints. Parts of one, such as single experts, are views of it."""
    from transformers.core_model_loading import revert_weight_conversion

    for name, tensor in model.state_dict().items():
        stored = {name: tensor} if tensor.is_meta else revert_weight_conversion(model, {name: tensor})
        if len(stored) == 1 and next(iter(stored.values())) is tensor:
            yield next(iter(stored)), tensor
        else:
            yield from _views_of(name, tensor, stored)


def _views_of(name: str, tensor: Any, parts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """transformers copies the parts of a tensor that it takes apart. These are the views that equal them, each of them once."""
    views: dict[tuple, dict[tuple, list]] = {}
    for part_name, part in parts.items():
        if part.shape not in views:
            of_shape = views[part.shape] = {}
            for view in _pieces(tensor, part.shape):
                of_shape.setdefault(_mark(view), []).append(view)
        same = views[part.shape].get(_mark(part), [])
        index = next((index for index, view in enumerate(same) if view.equal(part)), None)
        if index is None:
            raise UsageError(f"[python.oneshot] {part_name} in checkpoints is not a part of {name}, in which this model has it: "
                             "pass the model's folder or id")
        yield part_name, same.pop(index)


def _pieces(tensor: Any, shape: tuple) -> Iterator[Any]:
    """The views of a shape into which a tensor, its matrices, or one of them transposed, divides along at most one dimension."""
    for whole in (tensor, *tensor) if tensor.dim() == 3 else (tensor,):
        for base in (whole, whole.mT) if whole.dim() > 1 else (whole,):
            cut = [place for place, sizes in enumerate(zip(base.shape, shape)) if sizes[0] != sizes[1]]
            if base.dim() == len(shape) and len(cut) <= 1:
                yield from base.split(shape[cut[0]], cut[0]) if cut else (base,)


def _mark(tensor: Any) -> tuple:
    """What equal tensors have in common, and few others."""
    row = tensor
    while row.dim() > 1:
        row = row[0]
    return (*tensor.shape, *row.reshape(-1)[:16].tolist())


def replace_tokenizer(output: Path, tokenizer: Any) -> None:
    """Writes a tokenizer or processor into a result that has another one."""
    for name in ("added_tokens.json", "chat_template.jinja", "chat_template.json", "merges.txt", "sentencepiece.bpe.model",
                 "special_tokens_map.json", "spiece.model", "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "vocab.json"):
        (output / name).unlink(missing_ok=True)
    shutil.rmtree(output / "additional_chat_templates", ignore_errors=True)
    saved_tokenizer(tokenizer, output)


def _save_companions(model: Any, tokenizer: Optional[Any], output: Path) -> None:
    """What is beside the weights of a checkpoint."""
    if tokenizer is not None:
        saved_tokenizer(tokenizer, output)
    generation = getattr(model, "generation_config", None)
    if generation is not None and not (output / "generation_config.json").exists():
        generation.save_pretrained(output)
