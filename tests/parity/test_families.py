"""Every family beside Llama's, compressed and opened again: transformers computes the logits that the program does."""

import json

import numpy
import pytest
import test_loading
import torch
import transformers
from safetensors.torch import save_file
from support import program, reference, tiny_models

SAMPLES = tiny_models.random_samples([19, 30], seed=5)

# Settings, and how many linears are compressed in two layers.
CASES = {
    "Gemma2": ({"sliding_window": 7}, 14),
    "Gemma3": ({"sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}, 14),
    "Phi3": ({}, 8),
    "Olmo2": ({}, 14),
    "SmolLM3": ({"no_rope_layers": [1, 0]}, 14),
    "Granite": ({"residual_multiplier": 0.6, "logits_scaling": 1.3}, 14),
    "Cohere2": ({"layer_types": ["sliding_attention", "full_attention"], "logit_scale": 0.7}, 14),
    "DeepseekV3": ({"first_k_dense_replace": 2}, 16),
    "DeepseekV2": ({"first_k_dense_replace": 2, "q_lora_rank": None}, 14),
}


def compress(family, folder, settings):
    model = tiny_models.save(folder / "model", family, torch.bfloat16, **settings)
    dataset = program.write_samples(folder / "samples.jsonl", tiny_models.random_samples([40, 64, 33, 64, 50, 64]))
    output = program.oneshot(model, folder / "out", "--dataset", dataset, "--group-size", "32", "--ignore", "lm_head")
    return model, output


@pytest.mark.parametrize("family", CASES)
def test_compressed(family, tmp_path):
    settings, linears = CASES[family]
    model, output = compress(family, tmp_path, settings)
    assert sum(name.endswith("weight_packed") for name in tiny_models.tensors(output)) == linears
    ours = program.logits(output, SAMPLES, tmp_path)
    theirs = test_loading.load(output, quantization_config=transformers.CompressedTensorsConfig(dequantize=True))
    plain = program.logits(model, SAMPLES, tmp_path)
    for mine, uncompressed, sample in zip(ours, plain, SAMPLES):
        wanted = test_loading.logits_of(theirs, sample)
        assert wanted.std() > 0.5
        assert numpy.abs(mine - wanted).max() < 2e-4
        # Four bits cost something, and less than everything: codes of the wrong weights would be as far off as noise.
        assert 0.01 < numpy.sqrt(numpy.mean((mine - uncompressed) ** 2)) / uncompressed.std() < 0.7


def dequantize(output, plain):
    """The compressed checkpoint as an uncompressed one, module by module as the format is described."""
    config = json.loads((output / "config.json").read_text())
    scheme = config.pop("quantization_config")["config_groups"]["group_0"]
    tensors = tiny_models.tensors(output)
    modules = [name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed")]
    for module in modules:
        weight = torch.from_numpy(reference.Stored(tensors, module, scheme).weight())
        tensors = {name: tensor for name, tensor in tensors.items() if not name.startswith(module + ".weight_")}
        tensors[module + ".weight"] = weight
    plain.mkdir()
    (plain / "config.json").write_text(json.dumps(config))
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    return plain, len(modules)


@pytest.mark.parametrize("family", ["DeepseekV3", "DeepseekV2"])
def test_compressed_experts(family, tmp_path):
    """transformers opens no compressed experts of these families, but the plain weights that they stand for."""
    _, output = compress(family, tmp_path, {})
    plain, modules = dequantize(output, tmp_path / "plain")
    assert modules == 8 + 5 + 3 * (8 + 1)  # a dense layer, another's attention, its eight experts and the shared one
    for mine, wanted in zip(program.logits(output, SAMPLES, tmp_path), tiny_models.logits(plain, SAMPLES)):
        assert wanted.std() > 0.5
        assert numpy.abs(mine - wanted).max() < 2e-4


@pytest.mark.parametrize("family, first, second", [
    ("Gemma3", "self_attn.q_proj", "self_attn.v_proj"), ("Cohere2", "mlp.gate_proj", "mlp.up_proj"),
    ("DeepseekV3", "self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
    ("DeepseekV3", "shared_experts.gate_proj", "shared_experts.up_proj"),
])
def test_schemes_of_what_readers_fuse(family, first, second, tmp_path):
    model = tiny_models.save(tmp_path / "model", family)
    group = lambda bits, suffix: {"targets": [f"re:.*{suffix}$"], "weights": {
        "num_bits": bits, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}
    (tmp_path / "recipe.json").write_text(json.dumps({"quant_stage": {"quant_modifiers": {"QuantizationModifier": {
        "config_groups": {"group_0": group(4, first), "group_1": group(8, second)}}}}}))
    program.fails("oneshot", model, "--output", tmp_path / "out", "--recipe", tmp_path / "recipe.json",
                  fragments=[first, second, "fuse"])


def test_phi3_keeps_its_fused_weights(tmp_path):
    """Readers of this family expect them so, and nothing more is fused."""
    _, output = compress("Phi3", tmp_path, {})
    names = set(tiny_models.tensors(output))
    assert "model.layers.0.self_attn.qkv_proj.weight_packed" in names
    assert "model.layers.1.mlp.gate_up_proj.weight_packed" in names
