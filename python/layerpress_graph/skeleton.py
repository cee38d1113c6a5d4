"""A model without weights: parameters take no memory, buffers that no checkpoint holds have their values."""

from __future__ import annotations

import contextlib
import copy
import math

import torch
from layerpress_frame.hub_kernels import hub_kernel
from torch.overrides import TorchFunctionMode

from .errors import ExportError, one_line

_PARTS = ("text_config", "decoder")
_LARGE = 1 << 26  # elements, more than buffers have


class Skeleton:
    """A model for exporting, and the values of its buffers by name."""

    def __init__(self, model, buffers: dict[str, torch.Tensor], mode):
        self.model, self.buffers, self.mode = model, buffers, mode


def load_config(folder, trust_remote_code: bool):
    """The configuration of a checkpoint; refuses code in its folder unless it is trusted."""
    import json

    from transformers import AutoConfig

    try:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ExportError(f"{folder}/config.json: cannot be read ({one_line(fault)})") from None
    if not isinstance(raw, dict):
        raise ExportError(f"{folder}/config.json: not a JSON object")
    if raw.get("auto_map") and not trust_remote_code and raw.get("model_type") not in known_types():
        raise ExportError(f"{folder}: the model is defined by Python code in its folder (auto_map); read that code, and "
                          "if you trust it pass --trust-remote-code")
    if (kernel := hub_kernel(raw)) and not trust_remote_code:
        raise ExportError(f"{folder}/config.json: names code of the hub ({one_line(kernel)}); remove it, or if you trust it pass "
                          "--trust-remote-code")
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as fault:
        raise ExportError(f"{folder}/config.json: transformers cannot read it ({one_line(fault)}); a newer transformers "
                          "may know this model_type") from None
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    return config


def known_types() -> set[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return set(CONFIG_MAPPING_NAMES)


def language_model(config, folder, trust_remote_code: bool):
    """The class of the causal language model and the configuration that it takes, as AutoModelForCausalLM chooses. Of models
    that this does not know, the class for images and text, or for sound and text."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING

    known = [models[type(config)] for models in (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MULTIMODAL_LM_MAPPING)
             if type(config) in models]
    if known:
        found = known[0][0] if isinstance(known[0], (tuple, list)) else known[0]
    else:
        found = _class_of_folder(config, folder, trust_remote_code)
    if found.config_class is not None and type(config) is not found.config_class:
        text = config.get_text_config()
        if type(text) is found.config_class:
            return found, text
    return found, config


def _class_of_folder(config, folder, trust_remote_code: bool):
    """The class that the folder's own code defines."""
    if trust_remote_code and "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(config.auto_map["AutoModelForCausalLM"], folder)
    raise ExportError(f"{folder}/config.json: transformers has no causal language model for model_type "
                      f"'{config.model_type}'; a newer transformers may have one")


class _LargeWithoutMemory(TorchFunctionMode):
    """A layer's experts may be larger than the machine's memory, so that not even their empty parameter can be made."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        sizes = args[0] if len(args) == 1 and isinstance(args[0], (tuple, list, torch.Size)) else args
        if function is torch.empty and kwargs.get("device") is None and all(isinstance(size, int) for size in sizes):
            if math.prod(sizes) >= _LARGE:
                kwargs["device"] = "meta"
        return function(*args, **kwargs)


@contextlib.contextmanager
def _parameters_without_memory():
    """Parameters lose their values when a module takes them; everything else is computed as usual."""
    register = torch.nn.Module.register_parameter

    def register_parameter(self, name, parameter):
        if parameter is not None and parameter.device.type != "meta":
            parameter = type(parameter)(parameter.data.to("meta"), requires_grad=False)
        register(self, name, parameter)

    torch.nn.Module.register_parameter = register_parameter
    try:
        with _LargeWithoutMemory():
            yield
    finally:
        torch.nn.Module.register_parameter = register


def build(model_class, config, dtype: torch.dtype, attention: str, experts: str) -> Skeleton:
    """Builds the model with these implementations, in evaluation mode and without a cache."""
    config = copy.deepcopy(config)
    for part in [config, *(getattr(config, name, None) for name in _PARTS)]:
        if hasattr(part, "use_cache"):
            part.use_cache = False
        if hasattr(part, "rescale_every"):
            part.rescale_every = 0  # RWKV divides weights in place when it first runs; norms make up for it
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _parameters_without_memory(), torch.no_grad():
            model = model_class._from_config(config, attn_implementation=attention, experts_implementation=experts,
                                             dtype=dtype)
    finally:
        torch.set_default_dtype(before)
    model.eval()
    return _in_fake_memory(model)


def _in_fake_memory(model) -> Skeleton:
    """Tensors "on the CPU" without memory: unlike on meta, constants that forward makes keep their values."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    buffers = {name: value.detach().clone() for name, value in model.named_buffers() if value.device.type != "meta"}
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    seen = {}
    with mode:
        for module in model.modules():
            for name, old in list(module._parameters.items()):
                if old is not None:
                    if id(old) not in seen:
                        empty = torch.empty(old.shape, dtype=old.dtype, device="cpu")
                        seen[id(old)] = (torch.nn.Parameter(empty, requires_grad=False), old)
                    module._parameters[name] = seen[id(old)][0]
            for name, old in list(module._buffers.items()):
                if old is not None:
                    module._buffers[name] = torch.empty(old.shape, dtype=old.dtype, device="cpu")
    return Skeleton(model, buffers, mode)
