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
    """Writes a token file of continuations of `samples`, in turn. Each gets as long as the longest sample, unless the model ends the text before."""
    samples, count = request["samples"], request["continuations"]
    length = max(map(len, samples))
    if length < 2:
        raise DataError("no sample has two tokens, so the model would have nothing to write: pass longer texts, or leave out --generate")
    model = _model(Path(request["model"]), request["trust_remote_code"])
    import torch

    torch.manual_seed(request["seed"])
    ends = _ids(model.generation_config.eos_token_id)
    inner = {token for sample in samples for token in sample[:-1]}  # ends there are those of turns
    parts = _parts(samples, count, length, _ids(model.config.get_text_config().bos_token_id), ends & inner)
    made: list[list[int]] = [[] for _ in parts]
    done = 0
    for together in _batches(parts):
        report({"continued": done, "of": count})
        for place, ids in zip(together, _continued(model, [parts[place] for place in together], length, ends - inner)):
            made[place] = ids
        done += len(together)
    return {"samples": count, "tokens": write_token_file(Path(request["output"]), made)}


def _ids(given: Any) -> set[int]:
    return set() if given is None else set(given) if isinstance(given, list) else {given}


def _parts(samples: Sequence[list[int]], count: int, length: int, first: set[int], turns: set[int]) -> list[list[int]]:
    """What the model continues, for each continuation. The places in one sample where it goes on lie evenly. Of text it sees a few tokens before,
    behind the token that texts begin with; of a conversation all that was said."""
    each = -(-count // len(samples))
    parts = []
    for i in range(count):
        sample = samples[i % len(samples)]
        prefix = min(_PREFIX, (len(sample) + 1) // 2, length - 1)
        start = (len(sample) - prefix) * (i // len(samples)) // each
        if turns.intersection(sample):
            part = sample[:start + prefix]
        elif start > 0 and sample[0] in first:
            part = sample[:1] + sample[start + 1:start + prefix]
        else:
            part = sample[start:start + prefix]
        parts.append(part)
    return parts


def _batches(parts: Sequence[list[int]]) -> list[list[int]]:
    """Places of parts of the same size."""
    by_size: dict[int, list[int]] = {}
    for place, part in enumerate(parts):
        by_size.setdefault(len(part), []).append(place)
    return [places[i:i + _TOGETHER] for places in by_size.values() for i in range(0, len(places), _TOGETHER)]


def _continued(model, parts: Sequence[list[int]], length: int, ends: set[int]) -> list[list[int]]:
    import torch
    from transformers import GenerationConfig

    size = len(parts[0])
    # In place of the model's own, which would fill what an argument leaves out, such as a repetition penalty.
    model.generation_config = GenerationConfig(do_sample=True, temperature=1.0, top_p=1.0, top_k=0, max_new_tokens=length - size,
                                               eos_token_id=sorted(ends) or None, pad_token_id=min(ends, default=0))
    ids = torch.tensor(parts, device=model.device)
    try:
        with torch.inference_mode():
            rows = model.generate(ids, attention_mask=torch.ones_like(ids)).tolist()
    except Exception as fault:  # models fail in many ways
        hint = ("look for damaged weights with layerpress verify" if "nan" in str(fault)
                else "lower --max-seq-length if they are longer than its context, or leave out --generate")
        raise DataError(f"transformers' model cannot continue the samples to {length} tokens ({one_line(fault)}): {hint}") from None
    return [row[:next((at + 1 for at in range(size, len(row)) if row[at] in ends), len(row))] for row in rows]


def _model(directory: Path, trust_remote_code: bool):
    try:
        import torch
        from transformers import AutoConfig
        from transformers.models.auto import modeling_auto
    except ImportError as fault:
        raise MissingPackageError("transformers", "writing samples with the model", fault) from None
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        config = AutoConfig.from_pretrained(str(directory), local_files_only=True, trust_remote_code=trust_remote_code)
        # CPUs compute in fp32 at least as fast, and a model of fp16 overflows less. Codes become numbers of the dtype that their model has.
        plain = device == "cpu" and getattr(config, "quantization_config", None) is None
        # Of models that see or hear, too, which write text here.
        reader = (modeling_auto.AutoModelForMultimodalLM if type(config) in modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING
                  else modeling_auto.AutoModelForCausalLM)
        model, found = reader.from_pretrained(
            str(directory), dtype=torch.float32 if plain else "auto", local_files_only=True, trust_remote_code=trust_remote_code,
            output_loading_info=True)
    except Exception as fault:  # checkpoints fail in many ways
        raise DataError(f"{directory}: transformers cannot load the model to continue samples ({one_line(fault)}): leave out "
                        "--generate") from None
    lacking = sorted({*found["missing_keys"], *(str(key) for key in found["mismatched_keys"])})
    if lacking:
        raise DataError(f"{directory}: transformers does not find {lacking[0]} there and would compute with random numbers instead: name the "
                        "original model, or leave out --generate")
    return model.to(device).eval()
