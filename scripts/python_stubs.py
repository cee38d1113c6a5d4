"""Writes the type stubs of the Python package, python/layerpress/**.pyi, from the tables of the C++ library. scripts/build has built the
package before (layerpress_native).

    python python_stubs.py            write them
    python python_stubs.py --check    fail when they are not what the tables say
"""
import difflib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "build" / "python"))

from layerpress.native import TABLES  # noqa: E402

from layerpress import errors, keywords  # noqa: E402

HEAD = "# Written by scripts/python_stubs.py from the tables of the C++ library.\n"
TYPES = {"str": "str", "int": "int", "float": "float", "bool": "bool", "list[str]": "str | list[str]"}
PATH = "str | PathLike[str]"
KEYWORD_TYPES = {
    "batch_size": "int", "clear_sparse_session": "bool", "config_name": "None", "data_collator": "str",
    "dataset_config_name": "str | None", "dataset_path": f"{PATH} | None", "dataloader_num_workers": "int",
    "dvc_data_repository": "None", "log_dir": "None", "min_tokens_per_module": "float | None", "model_revision": "str",
    "overwrite_cache": "bool", "pad_to_max_length": "bool", "preprocessing_func": "Callable[[Any], Any] | None",
    "preprocessing_num_workers": "int | None", "processor": "Any", "propagate_error": "bool",
    "quantization_aware_calibration": "bool", "raw_kwargs": "dict[str, Any] | None",
    "recipe_args": "None", "remove_columns": "Any", "save_compressed": "bool", "sequential_prefetch": "bool", "stage": "None",
    "streaming": "bool", "tie_word_embeddings": "bool", "tokenizer": "Any", "tracing_ignore": "Any"}
RENAMED_TYPES = {"precision": "Any", "output_dir": PATH, "splits": "str | list[str] | dict[str, str]"}
PATHS = ("output", "offload_dir", "summary", "report", "svg", "dot", "task_folder")


def option_lines(function: str, without: tuple[str, ...]) -> list[str]:
    lines = []
    for option in TABLES[function]:
        name = option["name"].replace("-", "_")
        if name in without:
            continue
        kind = PATH if name in PATHS else TYPES[option["type"]]
        lines.append(f"    {name}: {kind} | None = None,  # {option['help']}")
    return lines


def keyword_lines() -> list[str]:
    types = {option["name"].replace("-", "_"): TYPES[option["type"]] for option in TABLES["oneshot"]}
    lines = []
    for name, default in sorted(keywords.ALL.items()):
        kind = KEYWORD_TYPES.get(name) or RENAMED_TYPES.get(name) or types[keywords.RENAMED[name]]
        kind = kind if default is not None or kind in ("Any", "None") or kind.endswith("None") else f"{kind} | None"
        lines.append(f"    {name}: {kind} = {default!r},")
    return lines


def function(name: str, head: list[str], options: list[str], result: str) -> list[str]:
    return [f"def {name}(", *(f"    {line}," for line in head), *options, f") -> {result}: ..."]


def package_stub() -> str:
    lines = [HEAD, "from contextlib import AbstractContextManager", "from os import PathLike", "from typing import Any, Callable", ""]
    names = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.Error)]
    lines += [f"from .errors import {name} as {name}" for name in sorted(names)]
    lines += ["from .model_free import model_free_ptq as model_free_ptq"]
    results = ("Evaluation", "Inspection", "MixedPrecision", "Plan", "Report", "Sensitivity", "Summary", "Verification")
    lines += [f"from .reports import {name} as {name}" for name in results]
    sessions = [f"from .sessions import {name} as {name}" for name in ("active_session", "create_session", "reset_session")]
    lines += ["from .runs import Picture", *sessions, "", "__version__: str", "", "class Distributed:"]
    lines += [f"    @property\n    def {name}(self) -> {kind}: ..." for name, kind in
              (("rank", "int"), ("size", "int"), ("local_rank", "int"), ("is_first", "bool"))]
    lines += ["    def barrier(self) -> None: ...", "    def failure(self) -> str: ...", "    def reports_failure(self) -> bool: ...",
              "    def all_gather_text(self, text: str) -> list[str]: ...", ""]
    run = ["model: Any", "*", "dataset: Any = None", "recipe: Any = None"]
    options = option_lines("oneshot", ("dataset", "recipe"))
    for name, result, bars in (("oneshot", "Any", True), ("plan", "Plan", False)):
        lines += function(name, [*run, f"progress: bool = {bars}"], [*keyword_lines(), *options], result)
    lines += function("mixed_precision", ["model: Any", "*", "dataset: Any = None", "progress: bool = False"], [*keyword_lines(), *options],
                      "MixedPrecision")
    lines += function("evaluate", [f"model: {PATH}", "dataset: Any = None", "*", "progress: bool = False"], option_lines("evaluate", ("dataset",)),
                      "Evaluation")
    lines += function("inspect", [f"model: {PATH}", "*", "dataset: Any = None", "progress: bool = False"],
                      option_lines("inspect", ("dataset",)), "Report")
    lines += function("picture", [f"model: {PATH}", "**arguments: Any"], [], "Picture")
    lines += function("prepare", [f"model: {PATH}", "dataset: Any", f"output: {PATH}", "*", "progress: bool = False"],
                      option_lines("prepare", ("dataset", "output")), "Report")
    lines += function("verify", [f"model: {PATH}", f"source: {PATH} = ''", "*", "progress: bool = False"], option_lines("verify", ("source",)),
                      "Verification")
    lines += ["def dispatch_for_generation(model: Any, *arguments: Any, **options: Any) -> Any: ...",
              "def init_dist(timeout: int = 600) -> Distributed: ...",
              "def get_rank_partition(split: str, num_samples: int) -> str: ...",
              "def load_context(model_class: Any = None) -> AbstractContextManager[None]: ...",
              "def load_offloaded_model(model_class: Any = None) -> AbstractContextManager[None]: ..."]
    return "\n".join(lines) + "\n"


def modifiers_stub() -> str:
    lines = [HEAD, "from typing import Any", "", "class AWQMapping:", "    def __init__(self, smooth_layer: str, "
             "balance_layers: list[str], activation_hook_target: str | None = ...) -> None: ...", "",
             "def plain(value: Any) -> Any: ...", "", "class Modifier:", "    arguments: dict[str, Any]",
             "    type_of_recipe: str"]
    for kind in TABLES["modifiers"]:
        lines += ["", f"class {kind['type']}(Modifier):"]
        if not kind["implemented"]:
            lines += ["    def __init__(self, **arguments: Any) -> None: ...  # is not implemented: raises RecipeError"]
            continue
        lines += ["    def __init__(", "        self,", "        *,"]
        lines += [f"        {name}: {kind_of} = ...," for name, kind_of in kind["arguments"]]
        lines += ["    ) -> None: ..."]
    return "\n".join(lines) + "\n"


def main() -> int:
    stubs = {"__init__.pyi": package_stub(), "modifiers/__init__.pyi": modifiers_stub()}
    fault = 0
    for name, text in stubs.items():
        path = ROOT / "python" / "layerpress" / name
        if "--check" not in sys.argv[1:]:
            path.write_text(text)
            continue
        there = path.read_text() if path.exists() else ""
        if there != text:
            sys.stderr.writelines(difflib.unified_diff(there.splitlines(True), text.splitlines(True), str(path), "the tables"))
            print(f"error: [stubs] {name} is out of date; run scripts/python_stubs.py", file=sys.stderr)
            fault = 1
    return fault


if __name__ == "__main__":
    sys.exit(main())
