"""Which weights of a vision part write the embeddings that its language model is given, found by running it on a made image.

The weights are those that the embeddings depend on through no other product, according to PyTorch's record of the run. That they are all,
and write nothing but rows, is then proved: with the weights turned by an orthogonal matrix, the embeddings must be turned by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch

from .errors import DataError, MissingPackageError
from .image_embedder import ImageEmbedder
from .settings_file import read_json_object

_PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Linear", "Embedding", "Convolution", "Mkldnn")
_VIEWS = ("T", "Transpose", "Permute", "View", "ReshapeAlias", "UnsafeView", "Expand", "Unsqueeze", "Squeeze", "ToCopy", "Alias")


class Writer(NamedTuple):
    """A weight whose rows are the embeddings' features, or whose columns are."""

    parameter: torch.nn.Parameter
    by_rows: bool


class Writers(NamedTuple):
    writers: list[Writer]
    used: list[torch.nn.Parameter]  # by the run, as far as the stream's width is among their sizes


def image_writers(embedder: ImageEmbedder, place: str, inputs) -> Writers:
    """Those of the embedder's model; `inputs` are the processor's tensors for a sample with an image."""
    model = embedder.model()
    width = model.get_input_embeddings().embedding_dim
    for parameter in model.parameters():  # the others need no record
        parameter.requires_grad_(parameter.is_floating_point() and width in parameter.shape)
    embedder.records = True
    before = _embeddings(embedder, place, inputs)
    embedder.records = False
    found = Writers(_writers(before, width), _used(before))
    _prove(found.writers, [each.detach() for each in before], embedder, place, inputs)
    return found


def stored_names(parameters: dict[str, torch.nn.Parameter], directory: Path) -> dict[str, str]:
    """The names that the checkpoint has for parameters, by their names in the model; without those that it has in another form. Which
    tensor it is, its values tell: of those of the same shape, the first whose name ends alike."""
    from safetensors import safe_open

    files = {path.name: safe_open(path, "pt") for path in _weight_files(directory)}
    stored = [(tuple(file.get_slice(name).get_shape()), name, file) for file in files.values() for name in file.keys()]
    found: dict[str, str] = {}
    for name, parameter in parameters.items():
        alike = [(_common_parts(name, own), own, file) for shape, own, file in stored if shape == tuple(parameter.shape)]
        for _, own, file in sorted(alike, key=lambda each: -each[0]):
            if torch.equal(file.get_tensor(own).to(parameter.dtype), parameter.detach()):
                found[name] = own
                break
    return found


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if (directory / "model.safetensors").is_file() or not index.is_file():
        return [directory / "model.safetensors"]
    return [directory / Path(name).name for name in sorted({str(name) for name in read_json_object(index)["weight_map"].values()})]


def answer(directory: Path) -> dict[str, Any]:
    """The writers' names in the checkpoint, those that have the features as rows and those that have them as columns, and the names of the
    weights that write nothing else into the stream: those that a run with an image uses, as far as they have the stream's width, or all, where
    there is nothing but images (a layer or a pooling behind the last features that are taken takes no part)."""
    try:
        from PIL import Image
    except ImportError as fault:
        raise MissingPackageError("pillow", f"the vision part of {directory}", fault) from None

    from .content import Content, Kind
    from .vision_processor import VisionProcessor

    noise = torch.randint(0, 256, (112, 112, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    content = Content("a made image", Kind.TEXT, "", (Image.fromarray(noise.numpy()),), True)
    processor = VisionProcessor(directory)
    embedder = processor.embedder
    found = image_writers(embedder, content.place, processor.inputs(content, None)[0])
    names = {id(parameter): name for name, parameter in embedder.model().named_parameters()}
    known = found.used if getattr(embedder.model().config, "audio_config", None) is not None else embedder.model().parameters()
    every = {names[id(parameter)]: parameter for parameter in (*known, *(each.parameter for each in found.writers))}
    stored = stored_names(every, directory)
    lost = next((name for each in found.writers if (name := names[id(each.parameter)]) not in stored), None)
    if lost is not None:
        raise DataError(f"the checkpoint has {lost} of the vision part in another form")
    return {"rows": [stored[names[id(each.parameter)]] for each in found.writers if each.by_rows],
            "columns": [stored[names[id(each.parameter)]] for each in found.writers if not each.by_rows],
            "used": sorted(stored.values())}


def _embeddings(embedder: ImageEmbedder, place: str, inputs) -> list[torch.Tensor]:
    """Each [..., features]."""
    given = embedder.embed(place, inputs)[1]
    if not len(given.places):
        raise DataError(f"{place}: the vision part makes no embeddings of it")
    return [each for each in (given.values, given.added) if each is not None]


def _kind(node) -> str:
    return type(node).__name__.split("Backward")[0]


def _parameter(node):
    """The parameter that a node of the record gives, perhaps seen in another form, and whether it is transposed."""
    transposed = False
    while node is not None and not hasattr(node, "variable"):
        if _kind(node) not in _VIEWS or len(node.next_functions) != 1:
            return None, False
        transposed ^= _kind(node) in ("T", "Transpose", "Permute")
        node = node.next_functions[0][0]
    return (None, False) if node is None else (node.variable, transposed)


def _writers(outputs: list[torch.Tensor], width: int) -> list[Writer]:
    found: dict[int, Writer] = {}

    def add(parameter, by_rows: bool) -> None:
        own = found.setdefault(id(parameter), Writer(parameter, by_rows))
        size = parameter.shape[0 if by_rows else -1]
        if own.by_rows != by_rows or parameter.dim() > 2 or size != width:
            raise DataError("the vision part writes embeddings in a way that cannot be turned")

    def visit(node) -> list:
        is_product = _kind(node).startswith(_PRODUCTS)
        ahead = []
        for source, _ in node.next_functions:
            parameter, transposed = _parameter(source)
            if parameter is not None:
                add(parameter, parameter.dim() == 1 or is_product and transposed)
            elif source is not None and not is_product:
                ahead.append(source)
        return ahead

    _walk(outputs, visit)
    return list(found.values())


def _used(outputs: list[torch.Tensor]) -> list[torch.nn.Parameter]:
    found: dict[int, torch.nn.Parameter] = {}

    def visit(node) -> list:
        if hasattr(node, "variable"):
            found[id(node.variable)] = node.variable
        return [source for source, _ in node.next_functions if source is not None]

    _walk(outputs, visit)
    return list(found.values())


def _walk(outputs: list[torch.Tensor], visit) -> None:
    ahead = [each.grad_fn for each in outputs if each.grad_fn is not None]
    seen = set()
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += visit(node)


def _turned(values: torch.Tensor, dim: int) -> torch.Tensor:
    """Turned along a dimension by an orthogonal matrix: random signs, then blocks of a Hadamard matrix."""
    moved = values.detach().to(torch.float64).movedim(dim, -1)
    width = moved.shape[-1]
    block = width & -width
    turned = (moved * (torch.randint(0, 2, (width,), generator=torch.Generator().manual_seed(1)) * 2 - 1)).reshape(-1, block)
    for half in (1 << i for i in range(block.bit_length() - 1)):
        pairs = turned.reshape(-1, 2, half)
        turned = torch.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], 1) / 2**0.5
    return turned.reshape(moved.shape).movedim(-1, dim).to(values.dtype)


def _prove(writers: list[Writer], before: list[torch.Tensor], embedder: ImageEmbedder, place: str, inputs) -> None:
    kept = [each.parameter.detach().clone() for each in writers]
    with torch.no_grad():
        for each in writers:
            each.parameter.copy_(_turned(each.parameter, 0 if each.by_rows else -1))
        after = _embeddings(embedder, place, inputs)
        for each, values in zip(writers, kept):
            each.parameter.copy_(values)
    for old, new in zip(before, after):
        wanted = _turned(old, -1).double()
        limit = 1e-4 if old.dtype == torch.float32 else 2e-2
        if not (new.double() - wanted).norm() <= limit * wanted.norm():
            raise DataError("turned weights of the vision part do not give turned embeddings")


def _common_parts(name: str, other: str) -> int:
    """How many parts both names have in common at their ends."""
    pairs = list(zip(reversed(name.split(".")), reversed(other.split("."))))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
