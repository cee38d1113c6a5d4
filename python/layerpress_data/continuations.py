"""Further samples, which the model itself writes: continuations of parts of the given ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Sequence

from layerpress_frame.program import Report

from .errors import DataError, MissingPackageError, one_line
from .token_file import write_token_file

_PREFIX = 64  # tokens of a sample that the model continues
_TOGETHER = 64  # continuations that are written at the same time


def answer(request: dict[str, Any], report: Report) -> dict[str, int]:
    """Writes a token file of continuations of `samples`, in turn. Each gets as long as its sample, unless the model ends the text before."""
    samples, count = request["samples"], request["continuations"]
    model = _model(Path(request["model"]), request["trust_remote_code"])
    import torch

    torch.manual_seed(request["seed"])
    tasks = _tasks(samples, count)
    made: list[list[int]] = [[] for _ in tasks]
    done = 0
    for together in _batches(tasks):
        report({"continued": done, "of": count})
        for place, ids in zip(together, _continued(model, [tasks[place] for place in together])):
            made[place] = ids
        done += len(together)
    return {"samples": count, "tokens": write_token_file(Path(request["output"]), made)}


def _tasks(samples: Sequence[list[int]], count: int) -> list[tuple[list[int], int]]:
    """The beginning of each continuation, and its length. Beginnings that come from one sample lie evenly in it."""
    each = -(-count // len(samples))
    tasks = []
    for i in range(count):
        sample = samples[i % len(samples)]
        prefix = min(_PREFIX, (len(sample) + 1) // 2)
        start = (len(sample) - prefix) * (i // len(samples)) // each
        tasks.append((sample[start:start + prefix], len(sample)))
    return tasks


def _batches(tasks: Sequence[tuple[list[int], int]]) -> list[list[int]]:
    """Places of tasks of the same sizes."""
    by_sizes: dict[tuple[int, int], list[int]] = {}
    for place, (prefix, length) in enumerate(tasks):
        by_sizes.setdefault((len(prefix), length), []).append(place)
    return [places[i:i + _TOGETHER] for places in by_sizes.values() for i in range(0, len(places), _TOGETHER)]


def _continued(model, tasks: Sequence[tuple[list[int], int]]) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig

    prefix, length = len(tasks[0][0]), tasks[0][1]
    if length == prefix:
        return [beginning for beginning, _ in tasks]
    ends = model.generation_config.eos_token_id
    ends = [] if ends is None else ends if isinstance(ends, list) else [ends]
    # In place of the model's own, which would fill what an argument leaves out, such as a repetition penalty.
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=length - prefix,
                                               eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0)
    ids = torch.tensor([beginning for beginning, _ in tasks], device=model.device)
    try:
        with torch.inference_mode():
            rows = model.generate(ids, attention_mask=torch.ones_like(ids)).tolist()
    except Exception as fault:  # models fail in many ways
        raise DataError(f"the model cannot continue samples ({one_line(fault)}): look for damaged weights with layerpress verify") from None
    return [row[:next((at + 1 for at in range(prefix, len(row)) if row[at] in ends), len(row))] for row in rows]


def _model(directory: Path, trust_remote_code: bool):
    try:
        import torch
        from transformers import AutoModelForCausalLM
    except ImportError as fault:
        raise MissingPackageError("transformers", "writing samples with the model", fault) from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # CPUs compute in fp32 at least as fast, and a model of fp16 overflows less.
    dtype = "auto" if device == "cuda" else torch.float32
    try:
        model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype, local_files_only=True, trust_remote_code=trust_remote_code)
    except Exception as fault:  # checkpoints fail in many ways
        raise DataError(f"{directory}: transformers cannot load the model to continue samples ({one_line(fault)}): leave out --generate") from None
    return model.to(device).eval()
