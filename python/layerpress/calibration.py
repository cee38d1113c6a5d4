"""Calibration data that is in Python, as a file that the program reads: token ids and texts as JSON lines, or tokenized by the helper with
the tokenizer that was given."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator, Optional

from .errors import DataError, UsageError
from .helper import helper_script, import_helper
from .image_rows import PROCESSED, has_images, is_processed, refuse_sound, wanted_samples
from .progress import logger
from .wording import in_python

_WITH_TEXT = ("messages", "conversations", "pixel_values")


class Items:
    """The rows of a dataset, of the wanted split, as the caller's functions change them. They can be read several times."""

    def __init__(self, dataset: Any, options: dict[str, Any], preprocess: Optional[Callable], collator: Optional[Callable]):
        if hasattr(dataset, "to_dict") and hasattr(dataset, "iloc"):  # a table of pandas, whose nulls are NaN
            dataset = dataset.astype(object).where(dataset.notna(), None).to_dict("records")
        dataset = _one_split(dataset, options)
        if not isinstance(dataset, Iterable) or isinstance(dataset, (str, bytes)):
            raise DataError(f"[python.dataset] {dataset!r:.40} ({type(dataset).__name__}) is no dataset; pass rows, a file's path or an id")
        self._collates = getattr(getattr(dataset, "collate_fn", None), "__name__", "") == "default_collate"
        self._dataset = _Kept(dataset) if iter(dataset) is dataset else dataset
        self._preprocess, self._collator = preprocess, collator
        self._column = options.get("text_column") or "text"
        self._warned = False

    def __iter__(self) -> Iterator[Any]:
        return _apart((self._changed(item) for item in map(self._checked, self._dataset)), self._column)

    def _checked(self, item: Any) -> Any:
        """Refuses a batch of lists whose first tokens torch has put together, then the second ones, and so on."""
        if self._collates and isinstance(item, list) and item and all(getattr(column, "ndim", 0) == 2 for column in item):
            if len(item) > 1:
                raise DataError(f"[python.dataset] the data loader's batches are {len(item)} tensors without names; let its dataset give "
                                "mappings with input_ids and attention_mask")
            return {"input_ids": item[0]}  # of a dataset of one tensor
        if isinstance(item, (list, tuple)) and item and all(isinstance(text, str) for text in item):
            return {self._column: list(item)}
        if self._collates and isinstance(item.get("input_ids") if hasattr(item, "keys") else item, list):
            raise DataError("[python.dataset] the data loader's default collate_fn turns lists of token ids around; let its dataset give tensors, or "
                            "pass the rows themselves")
        return item

    def _changed(self, item: Any) -> Any:
        item = self._preprocessed(item, self._preprocess) if self._preprocess else item
        if self._collator is None:
            return item
        if hasattr(item, "keys") and item.get("input_ids") is not None:
            return self._collator([dict(item)])
        if not self._warned:
            logger.warning("data_collator is not called: it takes tokenized rows, and these are tokenized by the program; pass rows of "
                           "input_ids if it changes them")
        self._warned = True
        return item

    def _preprocessed(self, item: Any, function: Callable) -> Any:
        """The row that the function returns. What has nothing to calibrate on is added to the row, as the datasets package's map() does;
        None stands for the row, which the function has changed."""
        made = function(item)
        usable = {"input_ids", self._column, *_WITH_TEXT}
        if not hasattr(item, "keys") or made is not None and (not hasattr(made, "keys") or usable & set(made.keys())):
            return made
        return {**dict(item), **(made or {})}

    def have_images(self) -> bool:
        return any(has_images(item) for item in self)


class _Kept:
    """The rows of a generator, which need not end, to be read several times."""

    def __init__(self, rows: Iterator[Any]):
        self._rows, self._read = rows, list[Any]()

    def __iter__(self) -> Iterator[Any]:
        yield from self._read
        for row in self._rows:
            self._read.append(row)
            yield row


class Rows:
    """A dataset as rows that the program knows: {"input_ids"} for all, or {"text"} and {"messages"}."""

    def __init__(self, items: Items, options: dict[str, Any], unread: tuple[str, ...] = ()):
        """Rows with something in one of the columns `unread` are refused."""
        self._items, self._unread = items, unread
        self._column = options.get("text_column") or "text"
        self._masked = bool(options.get("use_loss_mask"))
        # Without shuffling the first rows are enough.
        wanted = wanted_samples(options)
        every = options.get("shuffle") or options.get("concatenate") or not isinstance(wanted, int)
        self._wanted = None if every else wanted
        self.tokenized = False

    def write(self, path: Path) -> None:
        kinds: set[str] = set()
        filled = 0
        with path.open("w", encoding="utf-8") as file:
            for number, item in enumerate(self._items, start=1):
                if self._wanted is not None and filled >= self._wanted:
                    break
                row = self._row(item, number)
                kinds.add(next(iter(row)))
                if len(kinds) > 1 and "input_ids" in kinds:
                    raise DataError(f"[python.dataset] row {number}: the rows before hold another kind of data; pass token ids for all or for none")
                filled += bool(next(iter(row.values())))
                file.write(_json_of(row, number) + "\n")
        if not kinds:
            raise DataError("[python.dataset] the dataset has no rows; pass another one")
        self.tokenized = kinds == {"input_ids"}

    def _row(self, item: Any, number: int) -> dict[str, Any]:
        if isinstance(item, str):
            return {"text": item}
        if hasattr(item, "keys"):
            return self._row_of_columns(item, number)
        values = _list(item)
        if isinstance(values, list) and values and isinstance(values[0], dict):
            return {"messages": values}
        if isinstance(values, list):
            return {"input_ids": _ids(_list(values[0]) if len(values) == 1 and _depth(values) == 2 else values, number)}
        raise DataError(f"[python.dataset] row {number} is a {type(item).__name__}; rows are texts, lists of messages or of token "
                        "ids, or mappings with input_ids, messages or a text")

    def _row_of_columns(self, item: Any, number: int) -> dict[str, Any]:
        columns = set(item.keys())
        refuse_sound(item, number, self._unread)
        if is_processed(item):
            name = next(name for name in PROCESSED if item.get(name) is not None)
            raise DataError(f"[python.dataset] row {number}: {name} describes images or sound, which this model has no part for; leave "
                            "it out")
        if item.get("input_ids") is not None:
            return self._row_of_ids(item, number)
        if isinstance(item.get(self._column), str):
            return {"text": item[self._column]}
        filled = next((name for name in ("messages", self._column, "conversations") if item.get(name) is not None), None)
        if filled is not None:
            messages = _plain(item[filled])
            if not isinstance(messages, list):
                raise DataError(f"[python.dataset] row {number}: {filled} holds a {type(item[filled]).__name__}, neither a text nor a list of "
                                "messages; mend the row")
            return {"messages": messages, **_tools(_plain(item.get("tools")), number)}
        if columns & {self._column, "messages", "conversations"}:
            return {"text": ""}  # skipped, as in a file
        raise DataError(f"[python.dataset] row {number} has the columns {', '.join(sorted(map(str, columns)))}; wanted is input_ids, "
                        f"{self._column}, messages or conversations: name the text with text_column")

    def _row_of_ids(self, item: Any, number: int) -> dict[str, Any]:
        if hasattr(item["input_ids"], "keys"):  # what apply_chat_template of transformers 5 returns
            item = {**item, **item["input_ids"]}
        ids = _ids(_list(item["input_ids"]), number)
        masks = {name: _plain(item.get(name)) for name in ("attention_mask", *(("loss_mask",) if self._masked else ()))}
        masks = {name: mask[0] if _depth(mask) == 2 else mask for name, mask in masks.items()}
        ids, mask = _without_padding(masks, ids, number)
        _check_positions(_list(item.get("position_ids")), len(ids), number)
        return {"input_ids": ids} if mask is None else {"input_ids": ids, "loss_mask": mask}


def _without_padding(masks: dict[str, Any], ids: list[int], number: int) -> tuple[list[int], Optional[list[int]]]:
    """Token ids and loss mask, as the helper takes them from files."""
    from layerpress_data.errors import DataError as Unreadable
    from layerpress_data.loss_mask import checked_mask, without_padding

    try:
        kept, mask = without_padding(f"row {number}", masks, ids)
        return kept, None if mask is None else checked_mask(f"row {number}", mask, kept)
    except Unreadable as fault:
        raise DataError(in_python(f"[python.dataset] {fault}")) from None


def _json_of(row: dict[str, Any], number: int) -> str:
    try:
        return json.dumps(row)
    except (TypeError, ValueError) as fault:
        raise DataError(f"[python.dataset] row {number}: holds something else than texts and numbers ({fault}); leave it out") from None


def _tools(tools: Any, number: int) -> dict[str, Any]:
    """The column for the chat template, if the row has it."""
    if isinstance(tools, (list, tuple)) and any(callable(tool) for tool in tools):
        raise DataError(f"[python.dataset] row {number}: a tool is a function; pass its JSON schema (transformers.utils.get_json_schema)")
    return {} if tools is None else {"tools": tools}


def preprocessing(given: Any) -> Optional[Callable]:
    """A function of rows, or what LLM Compressor takes for one: "file.py:function"."""
    if given is None or callable(given):
        return given
    file, _, name = str(given).rpartition(":")
    if not file.endswith(".py") or not Path(file).is_file():
        raise UsageError(f"[python.oneshot] preprocessing_func: {given!r} is neither a function nor FILE.py:FUNCTION")
    function = runpy.run_path(file).get(name)
    if not callable(function):
        raise UsageError(f"[python.oneshot] preprocessing_func: {file} has no function {name}")
    return function


# Of tokenizers; save_pretrained() forgets those that were set afterwards.
_SETTINGS = {"truncation_side": "right", "padding_side": "right", "model_max_length": None, "split_special_tokens": False}
# What a class of its own may do otherwise; the helper makes a tokenizer of the saved files.
_METHODS = ("__call__", "_encode_plus", "_tokenize", "apply_chat_template", "encode", "tokenize")


def _refuse_own_methods(tokenizer: Any) -> None:
    for kind in type(getattr(tokenizer, "tokenizer", tokenizer)).__mro__:
        if kind.__module__.split(".")[0] not in ("builtins", "tokenizers", "transformers", "transformers_modules") and any(
                name in vars(kind) for name in _METHODS):
            raise UsageError(f"[python.oneshot] tokenizer: {kind.__name__} has methods of its own, which are not called; pass rows with the "
                             "input_ids that it makes")


def saved_tokenizer(tokenizer: Any, home: Path) -> Path:
    """Writes a tokenizer or processor as it is now."""
    text: Any = getattr(tokenizer, "tokenizer", tokenizer)
    tokenizer.save_pretrained(home)
    file = home / "tokenizer_config.json"
    if file.is_file():
        config = json.loads(file.read_text(encoding="utf-8"))
        changed = {name: value for name, usual in _SETTINGS.items()
                   if (value := getattr(text, name, None)) not in (None, config.get(name, usual))}
        if changed:
            file.write_text(json.dumps({**config, **changed}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return home


def tokenized_by(tokenizer: Any, model_type: Optional[str], rows: Path, options: dict[str, Any], folder: Path) -> Path:
    """Tokenizes a file of rows with a given tokenizer or processor, as the program's helper does with a checkpoint's own. The helper
    needs no transformers for the tokenizers of some model types."""
    home = folder / "tokenizer"
    home.mkdir()
    _refuse_own_methods(tokenizer)
    saved_tokenizer(tokenizer, home)
    if not (home / "config.json").exists():
        (home / "config.json").write_text(json.dumps({} if model_type is None else {"model_type": model_type}))
    written = folder / "samples.safetensors"
    request = {"model": str(home), "dataset": str(rows), "output": str(written)}
    for name, field in (("num_calibration_samples", "num_samples"), ("max_seq_length", "max_seq_length"), ("shuffle", "shuffle"),
                        ("seed", "seed"), ("concatenate", "concatenate"), ("use_loss_mask", "use_loss_mask")):
        if options.get(name) is not None:
            request[field] = options[name]
    if not rows.name.startswith("rows."):  # a file or an id of the caller's
        request |= {"split": options.get("dataset_split") or "train", "text_column": options.get("text_column") or "text"}
    done = subprocess.run([sys.executable, "-s", helper_script()], input=json.dumps(request), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]
        raise DataError(in_python(said[-1]) if said else f"[python.dataset] the data helper ended with code {done.returncode}: {done.stderr[-400:]}")
    summary = json.loads(done.stdout.splitlines()[-1])
    if summary.get("skipped_empty"):
        logger.warning("%d rows without tokens were skipped", summary["skipped_empty"])
    if "cut_to" in summary:
        logger.warning("texts are cut to %d tokens, the tokenizer's model_max_length, not to max_seq_length=%d", summary["cut_to"],
                       request.get("max_seq_length", 2048))
    return written


def one_file(given: Any, name: str, options: dict[str, Any]) -> Any:
    """The file, where the datasets package takes files by split or in a list; anything else as it is."""
    if isinstance(given, dict) and given and all(isinstance(value, (str, os.PathLike)) or _are_names(value, name) for value in given.values()):
        split, text = _wanted_split(options), (options.get("dataset_split") or "train").strip()
        if split.name not in given:
            raise UsageError(f"[python.oneshot] {name}: there is no split {split.name}; name one of {', '.join(map(str, given))}")
        options["dataset_split"] = "train" + text[len(split.name):]
        given = given[split.name]
    if not _are_names(given, name):
        return given
    if len(given) > 1:
        raise UsageError(f"[python.oneshot] {name}: {len(given)} files; pass one, a folder, or the rows of all")
    return next(iter(given))


_DATA = (".csv", ".json", ".jsonl", ".parquet", ".safetensors", ".txt")


def _are_names(value: Any, name: str) -> bool:
    """Whether these are names of files and not texts, also of files that are not there: what ends like one, or exists."""
    if not isinstance(value, (list, tuple, set, frozenset)) or not value or not all(isinstance(entry, (str, os.PathLike)) for entry in value):
        return False
    return name == "dataset_path" or all(
        isinstance(entry, os.PathLike) or entry.endswith(_DATA) or os.path.isabs(entry) and os.path.exists(entry) for entry in value)


def _wanted_split(options: dict[str, Any]) -> Any:
    import_helper()
    from layerpress_data.errors import DataError as Unreadable
    from layerpress_data.split import parse_split

    try:
        return parse_split(options.get("dataset_split") or "train")
    except Unreadable as fault:
        raise UsageError(f"[python.dataset] {fault}") from None


def _one_split(dataset: Any, options: dict[str, Any]) -> Any:
    """Of a mapping of splits the wanted one, and of that or of other rows the wanted slice, in rows or percent as `datasets` takes them."""
    split = _wanted_split(options)
    if hasattr(dataset, "keys") and not (hasattr(dataset, "column_names") and not isinstance(dataset.column_names, dict)):
        if split.name not in dataset.keys():
            raise UsageError(f"[python.dataset] there is no split {split.name}; name one of {', '.join(map(str, dataset.keys()))}, or, if these "
                             "are columns, pass datasets.Dataset.from_dict(...)")
        dataset = dataset[split.name]
    if split.start is None and split.stop is None:
        return dataset
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"[python.dataset] split: a {type(dataset).__name__} has no slices; take its rows before")
    rows = split.rows(len(dataset))
    return dataset.select(rows) if hasattr(dataset, "select") else [dataset[row] for row in rows]


def _apart(items: Iterable[Any], column: str) -> Iterator[Any]:
    """Rows; the batches of a loader are taken apart, unless they have images, whose parts only a processor knows."""
    for item in items:
        ids, texts = (item.get(name) if hasattr(item, "keys") else None for name in ("input_ids", column))
        if isinstance(item, (list, tuple)) and item and all(hasattr(row, "keys") and {"input_ids", column} & set(row.keys()) for row in item):
            yield from item
            continue
        if ids is None and isinstance(texts, list) and texts and all(isinstance(text, str) for text in texts):
            yield from texts
            continue
        if ids is None or is_processed(item) or _depth(_list(ids)) < 2:
            yield item
            continue
        columns = {name: _list(item[name]) for name in ("input_ids", "attention_mask", "loss_mask", "position_ids") if item.get(name) is not None}
        for index in range(len(columns["input_ids"])):
            yield {name: values[index % len(values)] for name, values in columns.items()}  # positions may stand once for all


def _list(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else list(value) if isinstance(value, tuple) else value


def _plain(value: Any) -> Any:
    """Lists in place of arrays and tuples, as they stand in the cells of tables."""
    value = _list(value)
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    return {name: _plain(entry) for name, entry in value.items()} if isinstance(value, dict) else value


def _depth(value: Any) -> int:
    return 1 + _depth(_list(value[0])) if isinstance(value, list) and value else 0 if not isinstance(value, list) else 1


def _check_positions(positions: Any, count: int, number: int) -> None:
    """Refuses others than count from 0, which nothing here reads."""
    from layerpress_data.content import counts_from_0

    if isinstance(positions, list) and _depth(positions) == 2 and len(positions) == 1:
        positions = _list(positions[0])
    if not counts_from_0(positions, count):
        raise DataError(f"[python.dataset] row {number}: position_ids does not count the tokens from 0, and is not read otherwise; make a "
                        "row of each text, or leave it out")


def _ids(values: list, number: int) -> list[int]:
    for value in values:
        if isinstance(value, bool) or not hasattr(value, "__index__") or getattr(value, "ndim", 0) > 0:
            raise DataError(f"[python.dataset] row {number}: {str(value)[:40]!r} is no token id")
    return [int(value) for value in values]


def fix_batch_if_needed(batch: dict[str, Any]) -> dict[str, Any]:
    """The row as it is. Scripts of AutoRound call it, which needs a masked token in each row; here every token counts."""
    return batch
