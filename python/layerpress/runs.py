"""The functions of the package: LLM Compressor's oneshot(), and plan(), mixed_precision(), evaluate(), inspect(), verify() and prepare()."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from pathlib import Path
from typing import Any, Iterator, Optional

from . import _native, keywords
from .calibration import Items, Rows, one_file, preprocessing, saved_tokenizer, tokenized_by
from .errors import DistributedError, Error, InterruptedError, RecipeError, UsageError
from .image_rows import ImageReader, folder_of, rows_of_file, takes_images, takes_sound, unread_columns, write_tokens
from .loaded_model import LoadedModel, WaitingFolder, code_folder, is_model, replace_tokenizer, tokenizer_of
from .module_in_memory import ModuleInMemory, is_module
from .named_datasets import NAMED, load
from .native import call, option_names, options_of, unknown_keyword
from .progress import logger
from .ranks import current_ranks, shares_weights, source_folder
from .recipes import recipe_text
from .reports import Evaluation, Inspection, MixedPrecision, Plan, Report, Sensitivity, Summary, Verification
from .saved_result import result_of
from .temporary_folder import TemporaryFolder


def oneshot(model: Any, *, dataset: Any = None, recipe: Any = None, progress: bool = True, **arguments: Any) -> Any:
    """Compresses a model in one shot and writes a compressed-tensors checkpoint.

    The arguments are LLM Compressor's and Layerpress's options, dashes as underscores; docs/python.md has both. Returns a
    Summary for a model that is a folder or an id. A transformers model in memory, or a torch module that takes token ids, is
    returned itself: its parameters then have the values of the result, its save_pretrained() writes the result, and its
    attribute `compression` is the Summary. Raises layerpress.Error; Ctrl-C raises InterruptedError, and the same call with
    resume=True continues.
    """
    try:
        return _oneshot(model, dataset, recipe, progress, arguments)
    except RecipeError as error:
        ranks = current_ranks()
        alone = ranks is None or ranks.size == 1
        if "nothing would be done" not in str(error) or not alone or not is_in_memory(model) or result_of(model) is None:
            raise
        logger.warning("the model in memory has this recipe's result already; it is compressed again, from the values that it has")
        return _oneshot(model, dataset, recipe, progress, arguments, goes_on=False)


def _oneshot(model: Any, dataset: Any, recipe: Any, progress: bool, arguments: dict[str, Any], goes_on: bool = True) -> Any:
    with _request(model, dataset, recipe, arguments, "oneshot", goes_on) as request:
        ranks = current_ranks()
        own = _own_tokenizer(request) if request.loaded is None and not is_in_memory(model) else None
        summary = _shared(call(_native.oneshot, request.model, request.options, progress=progress, last=request.others))
        if not is_in_memory(model):
            if own is not None:
                if ranks is None or ranks.is_first:
                    replace_tokenizer(Path(summary["output"]), own)
                if ranks is not None:
                    ranks.barrier()
            return summary
        loaded = request.loaded or LoadedModel(model)
        try:
            loaded.stand_for(Path(summary["output"]), request.tokenizer, request.writes, request.waiting)
        except Error as error:
            if request.waiting is None:
                raise
            kept = request.waiting.keep()  # the result is finished
            raise type(error)(str(error).replace(summary["output"], str(kept))) from None
        model.compression = summary
        return model


def _shared(summary: dict[str, Any]) -> Summary:
    """The first rank's, which alone is whole."""
    ranks = current_ranks()
    if ranks is None or ranks.size == 1:
        return Summary(summary)
    return Summary(json.loads(ranks.all_gather_text(json.dumps(summary) if ranks.is_first else "")[0]))


def _tokenizer_of_request(request: _Request, download: bool) -> Any:
    """The tokenizer of texts; none where only the program finds out that there is none."""
    with contextlib.suppress(UsageError):
        return request.tokenizer or tokenizer_of(request.model, images=False, download=download)
    return None


def _own_tokenizer(request: _Request) -> Any:
    """A tokenizer or processor that is passed beside a model's folder or id, unless it is the model's own."""
    given = request.tokenizer
    if given is None:
        return None
    into_file = str(request.options.get("output", "")).endswith(".gguf")  # which takes no settings
    with TemporaryFolder() as folder, contextlib.suppress(UsageError):
        own = tokenizer_of(request.model, hasattr(given, "image_processor"))
        given_files, own_files = ({str(file.relative_to(place)): file.read_bytes() for file in place.rglob("*")
                                   if file.is_file() and not (into_file and file.name == "tokenizer_config.json")}
                                  for place in (saved_tokenizer(given, folder / "given"), saved_tokenizer(own, folder / "own")))
        if given_files == own_files:
            return None
    if into_file or request.options.get("push"):
        raise UsageError("[python.oneshot] tokenizer: GGUF files and uploads have the model's own; save the tokenizer into the model's folder")
    return given


def plan(model: Any, *, dataset: Any = None, recipe: Any = None, progress: bool = False, **arguments: Any) -> Plan:
    """Memory, disk and time that oneshot() with the same arguments would take. Nothing is compressed."""
    with _request(model, dataset, recipe, arguments, "plan") as request:
        return Plan(call(_native.plan, request.model, request.options, progress=progress,
                         last=request.others))


def mixed_precision(model: Any, *, dataset: Any = None, progress: bool = False, **arguments: Any) -> MixedPrecision:
    """Chooses one of `schemes` for every linear by measurements on the dataset, within target_bits or target_size, as oneshot() with the
    same arguments does. Nothing is compressed: the result goes to oneshot(recipe=...)."""
    with _request(model, dataset, None, arguments, "mixed_precision") as request:
        return MixedPrecision(call(_native.mixed_precision, request.model, request.options, progress=progress, last=request.others))


def evaluate(model: str | os.PathLike, dataset: Any = None, *, progress: bool = False, **arguments: Any) -> Evaluation:
    """Perplexity of a plain or compressed checkpoint on a dataset, the figures of `tasks` of lm-evaluation-harness, or both; with
    `reference` how it differs from another one."""
    folder = _path(model, "evaluate")
    with _with_dataset(folder, dataset, arguments, "num_samples") as given:
        return Evaluation(call(_native.evaluate, folder, options_of("evaluate", given), progress=progress))


def inspect(model: str | os.PathLike, *, dataset: Any = None, progress: bool = False, **arguments: Any) -> Report:
    """A model's subgraphs and linear groups; with plan=True, graph=True, svg=FILE or dot=FILE the plan of a run, the graph as text or a
    picture of it; with sensitivity=True, schemes=[...] and a dataset the output error of every linear in each scheme. In notebooks,
    `picture(model)` shows the graph."""
    folder = _path(model, "inspect")
    with _with_dataset(folder, dataset, arguments) as given:
        result = call(_native.inspect, folder, options_of("inspect", given), progress=progress)
    if "plan" in result:
        return Plan(result["plan"])
    if "sensitivity" in result:
        return Sensitivity(result["sensitivity"])
    return Inspection(result) if "subgraphs" in result and "parameters" in result else Report(result)


def _path(model: Any, function: str) -> str:
    if not isinstance(model, (str, os.PathLike)):
        raise UsageError(f"[python.{function}] model: a {type(model).__name__} is neither a folder nor an id; save a model in memory with "
                         "save_pretrained(FOLDER) and pass the folder")
    return os.fspath(model)


@contextlib.contextmanager
def _with_dataset(model: str, dataset: Any, arguments: dict[str, Any],
                  count: str = "num_calibration_samples") -> Iterator[dict[str, Any]]:
    """The arguments with the dataset: rows in Python are in a file inside of the context."""
    arguments = dict(arguments)
    dataset = one_file(dataset, "dataset", arguments)
    if dataset is None or isinstance(dataset, (str, os.PathLike)):
        yield {**arguments, "dataset": dataset}
        return
    if _is_loader(dataset):
        arguments = {count: keywords.ALL_SAMPLES, **arguments}
    with TemporaryFolder() as folder:
        wanted = {**arguments, "num_calibration_samples": arguments.get(count)}
        items = Items(dataset, wanted, None, None)
        if _takes_more_than_text(_config_in(model)) and items.have_images():
            tokens = _done(_written_tokens(items, wanted, ImageReader(Path(model)), folder), wanted)
            yield {**{name: value for name, value in wanted.items() if name in arguments or name == "model_graph"}, "dataset": tokens}
            return
        rows = folder / "rows.jsonl"
        Rows(items, wanted, unread_columns(_config_in(model))).write(rows)
        yield {**arguments, "dataset": rows, "text_column": "text", "dataset_split": None}


def _is_loader(dataset: Any) -> bool:
    """Whether this is a data loader of torch. It has the rows that its maker has chosen, and all of them are used."""
    return hasattr(dataset, "collate_fn") and hasattr(dataset, "batch_size")


def is_in_memory(value: Any) -> bool:
    """Whether this is a transformers model or a module of torch."""
    return is_model(value) or is_module(value)


class Picture:
    """A model's graph as SVG."""

    def __init__(self, svg: str):
        self.svg = svg

    def _repr_svg_(self) -> str:
        return self.svg


def picture(model: str | os.PathLike, **arguments: Any) -> Picture:
    """Draws a model's graph; needs Graphviz."""
    with TemporaryFolder() as folder:
        file = folder / "graph.svg"
        drawn = inspect(model, svg=str(file), **arguments)
        return Picture(Path(drawn["pictures"][0]).read_text(encoding="utf-8"))


def prepare(model: str | os.PathLike, dataset: Any, output: str | os.PathLike, *, progress: bool = False,
            **arguments: Any) -> Report:
    """Tokenizes data with a model's tokenizer into a token file, which oneshot() and evaluate() take as dataset."""
    folder = _path(model, "prepare")
    with _with_dataset(folder, dataset, arguments) as given:
        options = options_of("prepare", {**given, "output": output})
        return Report(call(_native.prepare, folder, options, progress=progress))


def verify(model: str | os.PathLike, source: str | os.PathLike = "", *, progress: bool = False, **arguments: Any) -> Verification:
    """Checks a checkpoint, by itself or against the model that it was made of; ["faults"] and ["warnings"] are lists."""
    options = options_of("verify", {**arguments, "source": source})
    return Verification(call(_native.verify, _path(model, "verify"), options, progress=progress))


class _Request:
    """What the extension module is asked for."""

    def __init__(self) -> None:
        self.model = ""
        self.options: dict[str, Any] = {}
        self.loaded: LoadedModel | ModuleInMemory | None = None
        self.tokenizer: Any = None
        self.waiting: WaitingFolder | None = None
        self.writes = True  # files beside the weights, and copies of the result: on the first rank

        self.changed: Any = None  # who knows the result that the model stands for, if its configurations were changed since
        self.own_dataset = False  # every rank has written a file of its own

    @property
    def others(self) -> tuple:
        """The last arguments of the extension module's functions."""
        return current_ranks(), None if self.loaded is None else self.loaded.native, self.own_dataset


@contextlib.contextmanager
def _request(model: Any, dataset: Any, recipe: Any, arguments: dict[str, Any], function: str, goes_on: bool = True) -> Iterator[_Request]:
    """The request that the keywords stand for; files that it needs exist inside of the context. `goes_on`: from the result that a model in memory
    stands for."""
    ranks = current_ranks()
    if ranks is not None and ranks.size > 1 and (failure := ranks.failure()):
        raise DistributedError(f"[python.{function}] these ranks can do no further work since one failed ({failure}); start the script again")
    made = False
    try:
        if ranks is not None and ranks.size > 1:
            _require_same_kind(dataset, ranks, function)
        with _own_request(model, dataset, recipe, arguments, function, goes_on) as request:
            made = True
            yield request
    except BaseException as error:
        if not made and ranks is not None and ranks.size > 1:  # of what fails later, the extension module tells the others
            ranks.fail(str(error) or type(error).__name__)
        if made or not isinstance(error, KeyboardInterrupt):
            raise
        raise InterruptedError(f"[python.{function}] stopped on request while the data was read; nothing was done") from None


def _require_same_kind(dataset: Any, ranks: Any, function: str) -> None:
    """Ranks exchange rows where they have some, so that all must have them."""
    own = "none" if dataset is None else "a name" if isinstance(dataset, (str, os.PathLike)) else "rows"
    for rank, kind in enumerate(ranks.all_gather_text(own)):
        if kind != own:
            raise DistributedError(f"[python.{function}] dataset: rank {rank} has {kind}, rank {ranks.rank} has {own}; pass the same on all ranks, "
                                   "or each its own rows")


@contextlib.contextmanager
def _own_request(model: Any, dataset: Any, recipe: Any, arguments: dict[str, Any], function: str, goes_on: bool) -> Iterator[_Request]:
    given = dict(arguments)
    known = {**option_names("oneshot"), **keywords.ALL}
    for name in given:
        if name not in known:
            raise unknown_keyword(function, name, known)
    own = {name: given.pop(name, default) for name, default in keywords.OWN.items()}
    options = keywords.to_options(given)
    request = _Request()
    request.tokenizer = own["processor"] if own["processor"] is not None else own["tokenizer"]
    _take_model(model, own, options, request, function, goes_on)
    if isinstance(request.tokenizer, (str, os.PathLike)):
        request.tokenizer = tokenizer_of(os.fspath(request.tokenizer), _takes_more_than_text(_config_of(request)), bool(options.get("download")))
    elif request.tokenizer is not None and not hasattr(request.tokenizer, "save_pretrained"):
        value = f"{request.tokenizer!r:.40} ({type(request.tokenizer).__name__})"
        raise UsageError(f"[python.{function}] tokenizer: {value} is neither a tokenizer nor a processor of transformers; pass one of "
                         "these, a folder or an id")
    with _removing_waiting_folder(request), TemporaryFolder() as folder:
        if request.changed is not None:
            request.model = str(request.changed.linked_with_settings(folder / "changed" / Path(request.model).name))
        chosen = _chosen_dataset(dataset, own["dataset_path"], options)
        if chosen is not None:
            options["dataset"] = _dataset(chosen, own, options, request, folder)
        text = recipe_text(recipe)
        if text is not None:
            options["recipe"] = text
        request.options = options_of("oneshot", options)
        yield request


def _chosen_dataset(dataset: Any, path: Any, options: dict[str, Any]) -> Any:
    """LLM Compressor reads `dataset_path` as the kind of file that `dataset` names."""
    if path is None:
        return one_file(dataset, "dataset", options)
    if dataset is None or isinstance(dataset, str) and dataset in ("csv", "custom", "json", "parquet", "text"):
        return one_file(path, "dataset_path", options)
    raise UsageError("[python.oneshot] dataset_path: the data is given twice; leave dataset or dataset_path out")


def _take_model(model: Any, own: dict[str, Any], options: dict[str, Any], request: _Request, function: str, goes_on: bool) -> None:
    ranks = current_ranks()
    model = getattr(model, "_orig_mod", model)  # of a model that torch.compile returned
    if is_model(model) and code_folder(model) is not None:
        options.setdefault("trust_remote_code", True)  # this process runs the code already
    earlier = result_of(model) if goes_on and is_in_memory(model) else None
    if isinstance(model, (str, os.PathLike)):
        revision = own["model_revision"]
        at = "" if revision in (None, "main") or os.path.exists(model) else f"@{revision}"
        request.model = os.fspath(model) + at
    elif earlier is not None and is_model(model):  # its parameters are those of the result, which knows more of them
        if "output" in options and os.path.exists(options["output"]) and os.path.samefile(options["output"], earlier):
            raise UsageError(f"[python.{function}] output_dir: {options['output']} has the result that this model has stood for since the call "
                             "before, and from which this call goes on; choose another folder")
        request.model = str(earlier)
        if ranks is None or ranks.size == 1:
            saver = vars(model)["save_pretrained"]
            request.changed = saver if saver.has_other_settings() else None
        request.writes = ranks is None or ranks.is_first
    elif not is_model(model):
        if not is_module(model):
            raise UsageError(f"[python.{function}] model: a {type(model).__name__} is neither a folder, an id, a transformers model, "
                             "nor a torch module")
        if ranks is not None and ranks.size > 1:
            raise UsageError(f"[python.{function}] model: a torch module is compressed by one process; start the script without torchrun")
        if earlier is not None:
            logger.warning("the module's values are taken as they are; what an earlier call has compressed is not stored compressed by this one")
        request.loaded = ModuleInMemory(model)
        request.model = request.loaded.name
    elif ranks is not None and ranks.size > 1:
        if not shares_weights(model):
            raise UsageError(f"[python.{function}] on several ranks, load the model inside of load_offloaded_model(), or pass its folder")
        request.model = source_folder(model)
        request.writes = ranks.is_first
    else:
        request.loaded = LoadedModel(model, bool(options.get("download")))
        request.model = request.loaded.name
    if is_in_memory(model) and options.get("push"):
        raise UsageError("[python.oneshot] push: a model in memory is uploaded after it is saved: model.save_pretrained(FOLDER), then "
                         "hf upload ORG/NAME FOLDER")
    if is_in_memory(model) and "output" not in options and function == "oneshot":
        options["output"] = _waiting_folder(request, model)


def _waiting_folder(request: _Request, model: Any) -> str:
    """All ranks write into the first one's."""
    ranks = current_ranks()
    if ranks is None or ranks.is_first:
        request.waiting = WaitingFolder(model)
    own = "" if request.waiting is None else str(request.waiting.path)
    return own if ranks is None or ranks.size == 1 else ranks.all_gather_text(own)[0]


@contextlib.contextmanager
def _removing_waiting_folder(request: _Request) -> Iterator[None]:
    """Nobody would find the unfinished result of a run that ends early: another run gets another folder."""
    try:
        yield
    except BaseException as error:
        if request.waiting is None:
            raise
        request.waiting.remove()
        if not isinstance(error, InterruptedError):
            raise
        raise InterruptedError("[python.oneshot] stopped on request; the unfinished result was in the temporary folder and is removed; "
                               "pass output=FOLDER to continue such a run with resume=True") from None


def _rows_of_ranks(path: Path, tokenized: bool, options: dict[str, Any], request: _Request) -> str:
    """If every rank was given the same data, the program divides it. Otherwise each rank's rows are its own: they stand at a place of
    their own in its file, which the split names."""
    if not tokenized and _own_tokenizer(request) is not None:
        raise UsageError("[python.oneshot] tokenizer: on several ranks, pass tokenized data, or leave it out for the model's own")
    ranks = current_ranks()
    request.own_dataset = True
    rows = path.read_bytes()
    if len(set(ranks.all_gather_text(hashlib.sha256(rows).hexdigest()))) == 1:
        return str(path)
    counts = [int(count) for count in ranks.all_gather_text(str(rows.count(b"\n")))]
    wanted = options.get("num_calibration_samples") or 512
    places = min(wanted, max(counts))
    first = rows[: rows.index(b"\n") + 1]
    path.write_bytes(first * (ranks.rank * places) + rows)
    options["dataset_split"] = f"train[{ranks.rank * places}:{(ranks.rank + 1) * places}]"
    if sum(counts) >= wanted:  # the ranks' parts are what was asked for, together
        options["num_calibration_samples"] = places
    return str(path)


def _dataset(dataset: Any, own: dict[str, Any], options: dict[str, Any], request: _Request, folder: Path) -> str:
    """The file or id that the program reads."""
    preprocess, collator = preprocessing(own["preprocessing_func"]), own["data_collator"]
    if not callable(collator):
        if collator not in ("truncation", "padding", None):
            raise UsageError(f"[python.oneshot] data_collator: {collator!r} is not known; pass truncation, padding or a function")
        collator = None
    if isinstance(dataset, str) and dataset in NAMED and not os.path.exists(dataset):
        dataset, usual = load(dataset, own["dataset_config_name"], options.pop("dataset_split", None),
                              lambda: _tokenizer_of_request(request, bool(options.get("download"))))
        preprocess = preprocess or usual
    if isinstance(dataset, (str, os.PathLike)):
        if preprocess is not None:
            raise UsageError("[python.oneshot] preprocessing_func: load the data with the datasets package, map it, and pass it")
        if collator is not None:
            logger.warning("data_collator is not called for data in files; pass rows of input_ids if it changes them")
        return _dataset_by_name(dataset, own, options, request, folder)
    if _is_loader(dataset):
        options.setdefault("num_calibration_samples", keywords.ALL_SAMPLES)
    items = Items(dataset, options, preprocess, collator)
    config = _config_of(request)
    if _takes_more_than_text(config) and items.have_images():
        return _tokens_with_images(items, options, request, folder)
    path = folder / "rows.jsonl"
    rows = Rows(items, options, unread_columns(config))
    rows.write(path)
    options.pop("text_column", None)
    options.pop("dataset_split", None)
    if current_ranks() is not None and current_ranks().size > 1:
        return _rows_of_ranks(path, rows.tokenized, options, request)
    if rows.tokenized or request.loaded is None and request.tokenizer is None:
        return str(path)
    return _tokens(path, options, request, folder)


def _dataset_by_name(dataset: str | os.PathLike, own: dict[str, Any], options: dict[str, Any], request: _Request, folder: Path) -> str:
    path = os.fspath(dataset) + (f":{own['dataset_config_name']}" if own["dataset_config_name"] else "")
    if request.tokenizer is None and (request.loaded is None or _is_tokenized(path)) or path.endswith(".safetensors"):
        return path
    if request.loaded is not None and takes_images(getattr(request.loaded, "config", {})):
        reader = _image_reader(request, folder)._replace(images=Path(path).parent if os.path.isfile(path) else None)
        rows = list(rows_of_file(path, reader, options))
        return _tokens_with_images(Items(rows, {}, None, None), options, request, folder, reader)
    return _tokens(Path(path), options, request, folder)


def _is_tokenized(path: str) -> bool:
    """Whether the rows of a JSON lines file are ids of tokens, which need no tokenizer."""
    if not path.endswith(".jsonl") or not os.path.isfile(path):
        return False
    with open(path, encoding="utf-8", errors="replace") as file, contextlib.suppress(ValueError):
        row = json.loads(next((line for line in file if line.strip()), "null"))
        return isinstance(row, dict) and "input_ids" in row
    return False


def _tokens(path: Path, options: dict[str, Any], request: _Request, folder: Path) -> str:
    """The token file that the helper makes of rows without images."""
    if request.tokenizer is None and request.loaded is not None:
        request.tokenizer = request.loaded.tokenizer()
    kind = getattr(getattr(request.loaded, "config", None), "model_type", None)
    return _done(str(tokenized_by(request.tokenizer, kind, path, options, folder)), options)


def _done(tokens: str, options: dict[str, Any]) -> str:
    """Takes out the options that have been followed."""
    for done in ("shuffle", "concatenate", "text_column", "dataset_split"):
        options.pop(done, None)
    return tokens


def _config_of(request: _Request) -> Any:
    """The model's, of transformers or as config.json has it; an empty one if it is not known."""
    return _config_in(request.model) if request.loaded is None else getattr(request.loaded, "config", {})


def _config_in(model: str) -> dict[str, Any]:
    file = Path(model) / "config.json"
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def _takes_more_than_text(config: Any) -> bool:
    return takes_images(config) or takes_sound(config)


def _image_reader(request: _Request, folder: Path) -> ImageReader:
    if not isinstance(request.loaded, LoadedModel):
        return ImageReader(Path(request.model), request.tokenizer)
    processor = request.tokenizer
    if not hasattr(processor, "image_processor"):
        with contextlib.suppress(UsageError):  # rows that a processor has read need none
            processor = request.loaded.tokenizer()
    return ImageReader(folder_of(request.loaded.model, processor, folder / "processor"), processor, request.loaded.model)


def _tokens_with_images(items: Items, options: dict[str, Any], request: _Request, folder: Path,
                        reader: Optional[ImageReader] = None) -> str:
    if current_ranks() is not None and current_ranks().size > 1:
        raise UsageError("[python.oneshot] dataset: on several ranks, rows with images come from a file or a token file that "
                         "prepare() makes; name it")
    return _done(_written_tokens(items, options, reader or _image_reader(request, folder), folder), options)


def _written_tokens(items: Items, options: dict[str, Any], reader: ImageReader, folder: Path) -> str:
    """A token file with what the vision part makes of the rows' images."""
    if not reader.reads_pixels:  # graphs that Layerpress describes itself take no embeddings of images
        options.setdefault("model_graph", "export")
    return str(write_tokens(items, reader, options, folder / "samples.safetensors"))
