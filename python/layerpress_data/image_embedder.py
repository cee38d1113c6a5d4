"""What a vision-language model's vision part gives its language model: embeddings at the tokens of images, and positions.

The model of transformers is built without its language model's layers, and its forward pass ends where it calls its
language model. Only the tensors of the rest are read from the checkpoint."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any, Mapping

from layerpress_frame.hub_kernels import hub_kernel

from .errors import DataError, MissingPackageError, one_line
from .given_embeddings import GivenEmbeddings
from .settings_file import read_json_object

# Arguments of a language model that an imported graph has itself: from token ids, because nothing is kept, or from what is
# read here.
_KNOWN = frozenset(("input_ids", "inputs_embeds", "attention_mask", "position_ids", "per_layer_inputs", "past_key_values",
                    "cache_position", "visual_pos_masks", "deepstack_visual_embeds"))
# Settings that name the tokens of images and sounds.
_TOKENS = ("image_token_id", "image_token_index", "audio_token_id", "audio_token_index")


class ImageEmbedder:
    """Loads the vision or audio part when the first sample with images or sound arrives."""

    def __init__(self, directory: Path):
        self._directory = directory
        self._model: Any = None
        self.records = False  # whether PyTorch records how features are made

    def embed(self, place: str, inputs: Mapping) -> tuple[list[int], GivenEmbeddings]:
        """The token ids of the language model, and what it is given for the images. `inputs` are the processor's tensors for one
        sample."""
        import torch

        model = self.model()
        from .shortened_model import Captured

        taken = inspect.signature(model.forward).parameters
        unknown = [name for name in inputs if name not in taken and name not in ("attention_mask", "token_type_ids")]
        if unknown:
            raise self._refusal(f"its processor gives {', '.join(unknown)}, which the model does not take")
        given = {name: self._cast(value) for name, value in inputs.items() if name in taken}
        try:
            with torch.set_grad_enabled(self.records):
                model(**given)
        except Captured as call:
            ids, made = self._read(call.arguments, call.token_ids)
            self._require_numbers(place, inputs, made)
            return ids, made
        except Exception as fault:  # models raise any kind
            raise DataError(f"{place}: the vision or audio part of {self._directory} fails ({one_line(fault)}): check the row's "
                            "images or sound, and that the processor's files belong to this model") from None
        raise self._refusal("it runs without its language model")

    def _require_numbers(self, place: str, inputs: Mapping, made: GivenEmbeddings) -> None:
        """Embeddings that are NaN would be taken for text."""
        tokens = {getattr(self._model.config, name, None) for name in _TOKENS}
        ids = inputs["input_ids"].reshape(-1).tolist()
        if {i for i, token in enumerate(ids) if token in tokens} - set(made.places):
            raise DataError(f"{place}: the vision or audio part of {self._directory} makes NaN of an image or a sound: look for damaged weights "
                            "with layerpress verify, and use a dtype in which it does not overflow")

    def _refusal(self, why: str) -> DataError:
        return DataError(f"{self._directory}: samples with images or sound are not possible with this kind of model: {why}; pass text only")

    def _cast(self, value):
        import torch

        tensor = torch.as_tensor(value)
        return tensor.to(self._model.dtype) if tensor.is_floating_point() else tensor

    def model(self):
        """The model without its language model's weights."""
        if self._model is None:
            try:
                import torch  # noqa: F401
                from transformers import AutoConfig
                from transformers.models.auto.modeling_auto import MODEL_FOR_MULTIMODAL_LM_MAPPING as models
            except ImportError as fault:
                raise MissingPackageError("transformers", f"the vision or audio part of {self._directory}", fault) from None
            if kernel := hub_kernel(read_json_object(self._directory / "config.json")):
                raise DataError(f"{self._directory}/config.json: names code of the hub ({one_line(kernel)}): remove it")
            config = AutoConfig.from_pretrained(str(self._directory), local_files_only=True, trust_remote_code=False)
            if type(config) not in models:
                raise self._refusal(f"transformers has no model of images or sound and text for model_type '{config.model_type}'")
            self._model = self._load(models[type(config)], config)
        return self._model

    def _load(self, model_class, config):
        if getattr(config, "quantization_config", None) is not None:
            del config.quantization_config  # what of the vision part is quantized is refused below

        from transformers.utils import logging

        from .shortened_model import shortened

        said = logging.get_verbosity()
        logging.set_verbosity(logging.CRITICAL)  # transformers reports the language model's tensors as unexpected
        try:
            model, found = shortened(model_class).from_pretrained(
                str(self._directory), config=config, dtype="auto", local_files_only=True, output_loading_info=True,
                use_safetensors=True, trust_remote_code=False)
        except DataError:
            raise
        except Exception as fault:  # checkpoints fail in many ways
            raise DataError(f"{self._directory}: the vision or audio part cannot be loaded ({one_line(fault)}): complete the "
                            "download, or pass text only") from None
        finally:
            logging.set_verbosity(said)
        own = dict(model.named_parameters())
        stored = sorted(key for key in map(str, found["unexpected_keys"]) if (of := _quantized(key)) and f"{of}.weight" in own)
        if stored:
            raise DataError(f"{self._directory}: its vision or audio part is stored quantized ({stored[0]}), and only plain weights are read there: "
                            "name the original model, or pass text only")
        faulty = sorted({*found["missing_keys"], *(str(key) for key in found["mismatched_keys"])})
        if faulty:
            raise DataError(f"{self._directory}: the vision or audio part's {faulty[0]} is missing or has another shape: complete "
                            "the download, or pass text only")
        return model.eval()

    def _read(self, given: dict, ids) -> tuple[list[int], GivenEmbeddings]:
        import torch

        extra = [name for name, value in given.items() if name not in _KNOWN and _has_tensor(value)]
        if extra:
            raise self._refusal(f"its language model takes {', '.join(extra)} beside embeddings and positions")
        embeddings = given.get("inputs_embeds")
        if not isinstance(embeddings, torch.Tensor) or ids is None or embeddings.shape[:2] != ids.shape or len(ids) != 1:
            raise self._refusal("its language model does not take one embedding per token")
        groups = self._groups(given.get("attention_mask"))
        empty = embeddings[0].isnan()
        places = (~empty).any(1)
        if empty[places].any():
            raise self._refusal("embeddings of images and text are mixed")
        positions = _positions(given.get("position_ids"), ids.shape[1], self._model.counts_differences)
        return ids[0].tolist(), GivenEmbeddings(places.nonzero().flatten().tolist(), embeddings[0][places], positions,
                                                self._added(given, places), groups)

    def _groups(self, mask):
        """The group of each token whose tokens attend to each other, or -1; None if tokens attend to earlier ones only."""
        import torch

        ahead = [allowed for allowed in _ahead(mask) if allowed.any()]
        if not ahead:
            return None
        joined = torch.cat([torch.zeros(1, dtype=torch.bool), ahead[0].diagonal(1)])  # with the token before
        groups = torch.where(joined | joined.roll(-1), (~joined).cumsum(0), -1)
        mutual = ((groups[:, None] == groups) & (groups >= 0)).triu(1)
        if any(not torch.equal(each, mutual) for each in ahead):
            raise self._refusal("tokens attend to later ones that are not of the same image")
        return groups.numpy()

    def _added(self, given: dict, places):
        """What layers add to the hidden state at the tokens of images: [places, layers, features], or None."""
        import torch

        layers = given.get("deepstack_visual_embeds")
        if layers is None or not len(layers):
            return None
        mask = given.get("visual_pos_masks")
        if mask is None or not torch.equal(mask.reshape(-1).bool(), places):
            raise self._refusal("some layers add features at other tokens than those of images")
        return torch.stack(list(layers), 1)


def _quantized(key: str) -> str:
    """The module of which a tensor belongs to quantized weights; "" of other tensors."""
    module, _, name = key.rpartition(".")
    return module if name.startswith(("weight_", "qweight", "qzeros", "scales", "g_idx", "input_scale")) else ""


def _has_tensor(value) -> bool:
    import torch

    if isinstance(value, (list, tuple)):
        return any(_has_tensor(each) for each in value)
    if isinstance(value, dict):
        return any(_has_tensor(each) for each in value.values())
    return isinstance(value, torch.Tensor)


def _ahead(mask):
    """For each mask, which later tokens each token attends to: bool [tokens, tokens]. Masks of tokens that are there, [samples,
    tokens], say nothing of them."""
    if isinstance(mask, dict):
        for each in mask.values():
            yield from _ahead(each)
    elif getattr(mask, "ndim", 0) == 4:
        allowed = mask if str(mask.dtype) == "torch.bool" else mask == 0
        yield from allowed.flatten(0, 1).triu(1)


def _positions(given, tokens: int, differences: bool):
    """The positions where they do not count from 0, or, if only their differences matter, from any number."""
    import torch

    if given is None:
        return None
    rows = given.reshape(-1, tokens)
    if given.dim() == 3 and given.shape[1] != 1:
        raise DataError("a model gives positions of several samples for one")
    counted = rows - rows[:, :1] if differences else rows
    return None if torch.equal(counted, torch.arange(tokens).expand_as(rows)) else rows.long().numpy()
