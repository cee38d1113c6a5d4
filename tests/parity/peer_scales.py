"""Writes peer_scales.json: the scales of LLM Compressor on tiny models, with which test_peer_scales.py compares.

    scripts/setup --peer
    .venv-peer/bin/python tests/parity/peer_scales.py [NAME ...]

Models and samples are made from a seed (tiny_models), so that the file has only scales.
"""

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import peer_scales_cases
import torch
from llmcompressor import oneshot
from llmcompressor.modifiers.quantization import QuantizationModifier
from llmcompressor.modifiers.transform.awq import AWQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from llmcompressor.pipelines.cache import IntermediatesCache
from support import tiny_models
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM

IntermediatesCache.pin_memory = lambda self, batch: None  # its AWQ asks for pinned memory also where there is no GPU


class RecordingSmoothQuant(SmoothQuantModifier):
    """Keeps the scales that it divides by."""

    def _apply_smoothing(self, model):
        waiting = [mapping for mapping in self.resolved_mappings_ if mapping.smooth_name in self.scales_]
        computed = []
        compute = self._calculate_smoothing_scales

        def keep(balance_layers, activation_scales):
            computed.append(compute(balance_layers, activation_scales))
            return computed[-1]

        object.__setattr__(self, "_calculate_smoothing_scales", keep)
        super()._apply_smoothing(model)
        for mapping, scales in zip(waiting, computed, strict=True):
            RECORDED[mapping.smooth_name] = scales.clamp(min=1e-5).float().tolist()


class RecordingAwq(AWQModifier):
    """Keeps the scales that it divides by."""

    def _compute_best_scale(self, mapping, *arguments):
        scales = super()._compute_best_scale(mapping, *arguments)
        RECORDED[mapping.smooth_name] = scales.float().tolist()
        return scales


RECORDED = {}


def run(folder, recipe, dtype=torch.float32, pipeline="basic"):
    """In the order of the samples, because LLM Compressor sorts a dataset by length. With the basic pipeline, because the
    sequential one traces Phi 3 and Mixtral without their causal mask (0.14.0.1). The basic one, however, tries AWQ's scales with
    quantized activations and weights whose own scales are uninitialized memory."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    samples = [torch.tensor(sample) for sample in tiny_models.random_samples(peer_scales_cases.LENGTHS)]
    rows = [{"input_ids": sample, "attention_mask": torch.ones_like(sample)} for sample in samples]
    oneshot(model=model, processor=object(), dataset=DataLoader(rows, batch_size=1), recipe=recipe,
            num_calibration_samples=len(samples), max_seq_length=max(peer_scales_cases.LENGTHS), pipeline=pipeline)
    return model


def smoothing_scales(family, settings, arguments):
    RECORDED.clear()
    with tempfile.TemporaryDirectory() as folder:
        run(tiny_models.save(Path(folder), family, **settings), RecordingSmoothQuant(**arguments))
    return dict(RECORDED)


def activation_aware_scales(family, settings, awq, quantization):
    RECORDED.clear()
    with tempfile.TemporaryDirectory() as folder:
        run(tiny_models.save(Path(folder), family, **settings),
            [RecordingAwq(**awq), QuantizationModifier(ignore=peer_scales_cases.IGNORED, **quantization)],
            pipeline="sequential")
    return dict(RECORDED)


def static_scales(family, settings, arguments, dtype):
    """Scales, and the quantization_config of the saved model."""
    with tempfile.TemporaryDirectory() as folder:
        model = run(tiny_models.save(Path(folder), family, dtype=dtype, **settings),
                    QuantizationModifier(ignore=peer_scales_cases.IGNORED, **arguments), dtype)
        scales = scales_of(model)
        model.save_pretrained(Path(folder) / "out", save_compressed=True)
        config = json.loads((Path(folder) / "out" / "config.json").read_text())["quantization_config"]
    return scales, config


def weight_scales(family, settings, arguments, dtype):
    with tempfile.TemporaryDirectory() as folder:
        model = run(tiny_models.save(Path(folder), family, dtype=dtype, **settings), QuantizationModifier(**arguments), dtype)
    return {name: parameter.float().flatten().tolist() for name, parameter in model.state_dict().items()
            if name.endswith(("weight_scale", "weight_global_scale"))}


def scales_of(model):
    return {name: parameter.flatten().tolist() for name, parameter in model.state_dict().items()
            if name.endswith(("input_scale", "input_zero_point", "input_global_scale", ".k_scale", ".v_scale",
                              ".k_zero_point", ".v_zero_point")) or
            (name.endswith("weight_scale") and parameter.numel() == 1)}


def rounded(scales):
    return {name: [float(f"{value:.6g}") for value in values] for name, values in scales.items()}


def main():
    wanted = sys.argv[1:]
    path = Path(__file__).with_name("peer_scales.json")
    known = {"smoothing": {}, "activation_aware": {}, "importance": {}, "static": {}, "configs": {}}
    if path.exists() and wanted:
        known.update(json.loads(path.read_text()))
    for name, case in peer_scales_cases.SMOOTHED.items():
        if not wanted or name in wanted:
            known["smoothing"][name] = rounded(smoothing_scales(*case))
    for name, case in peer_scales_cases.ACTIVATION_AWARE.items():
        if not wanted or name in wanted:
            known["activation_aware"][name] = rounded(activation_aware_scales(*case))
    for name, case in peer_scales_cases.IMPORTANCE.items():
        if not wanted or "importance-" + name in wanted:
            dtype = torch.bfloat16 if name.endswith("bf16") else torch.float32
            known["importance"][name] = rounded(weight_scales(*case, dtype))
    path.write_text(json.dumps(known, separators=(",", ":")) + "\n")
    cases = {**peer_scales_cases.STATIC, **peer_scales_cases.GLOBAL, **peer_scales_cases.CACHED}
    for name, case in cases.items():
        if not wanted or name in wanted:
            scales, config = static_scales(*case, torch.bfloat16 if name.endswith("bf16") else torch.float32)
            known["static"][name] = rounded(scales)
            if name not in peer_scales_cases.STATIC:
                known["configs"][name] = config
            path.write_text(json.dumps(known, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
