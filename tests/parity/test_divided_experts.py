"""Families whose experts transformers has in stacked tensors only, which lie in the checkpoint in different ways: they are compressed
one by one, named as LLM Compressor names them and vLLM reads them, and a layer that stays as it is keeps its tensors."""

import json

import pytest
import torch
import transformers
from safetensors.torch import save_file
from support import any_model, program, reloading, tiny_illustrated, tiny_models
from support.selection import nightly_but

SAMPLES = tiny_models.random_samples([19, 30, 2], 199, seed=5)
EXPERTS, PARTS = 8, ("gate_proj", "up_proj", "down_proj")
# The module of a layer that has the experts, and the shape of gate and up in a checkpoint.
FAMILIES = {
    "llama4": ("language_model.model.layers.{}.feed_forward", (64, 192)),
    "llama4_text": ("model.layers.{}.feed_forward", (64, 192)),
    "qwen3_vl_moe": ("model.language_model.layers.{}.mlp", (64, 96)),
    "gemma4": ("model.language_model.layers.{}", (96, 64)),
    "granitemoe": ("model.layers.{}.block_sparse_moe", (192, 64)),
}
ILLUSTRATED = {"llama4": {"num_local_experts": EXPERTS, "num_hidden_layers": 2}, "qwen3_vl_moe": {"moe_intermediate_size": 48}}


def save(folder, family):
    if family not in ILLUSTRATED:
        mixed = {"enable_moe_block": True, "num_experts": EXPERTS, "top_k_experts": 2, "moe_intermediate_size": 48}
        needs = {"gemma4": mixed, "llama4_text": {"num_hidden_layers": 2}}
        return any_model.save(folder, family, **needs.get(family, {}))
    tiny_illustrated.save(folder, family, **ILLUSTRATED[family])
    if family == "llama4":
        return folder
    released = {name: tensor.mT.contiguous() if "mlp.experts" in name else tensor for name, tensor in tiny_models.tensors(folder).items()}
    save_file(released, folder / "model.safetensors", {"format": "pt"})
    return folder


def their_logits(folder, family):
    kind = transformers.AutoModelForImageTextToText if family in ILLUSTRATED else transformers.AutoModelForCausalLM
    model, info = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        return [model(torch.tensor([list(sample)]), use_cache=False).logits[0] for sample in SAMPLES]


@pytest.mark.parametrize("family", nightly_but(FAMILIES, "llama4", "qwen3_vl_moe"))
def test_divided(family, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source, (module, shape) = save(tmp_path / "model", family), FAMILIES[family]
    loads = family not in reloading.STACKED  # transformers has the experts of a quantized model one by one, all of them
    before, stacked = tiny_models.tensors(source), [f".{name}" for name in reloading.STACKED.get(family, reloading.STACKED["gpt_oss"])[:2]]
    assert before[module.format(0) + stacked[0]].shape == (EXPERTS, *shape)
    dataset = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([40, 64, 33, 64, 50, 64], 199))
    for name, layers, ignored in (("all", (0, 1), []), ("first", (0,), ["re:.*layers.1.*"])):
        out, summary = tmp_path / name, tmp_path / f"{name}.json"
        ran = program.run("oneshot", source, "--output", out, "--dataset", dataset, "--scheme", "W8A16", "--group-size", "16",
                          "--summary", summary, "--ignore", "lm_head", *ignored)
        assert (f"the experts of {len(layers)} layer" in ran.errors and "one by one" in ran.errors) != loads
        assert json.loads(summary.read_text())["source_tensors"]["dropped"] == []
        tensors = tiny_models.tensors(out)
        experts = {each.removesuffix(".weight_packed") for each in tensors if ".experts." in each and each.endswith("_packed")}
        assert experts == {f"{module.format(layer)}.experts.{e}.{part}" for layer in layers for e in range(EXPERTS) for part in PARTS}
        for kept in [module.format(1) + each for each in stacked]:
            assert (kept in tensors) == (1 not in layers and not loads)
            assert kept not in tensors or torch.equal(tensors[kept], before[kept])
        program.run("verify", out, "--source", source)
        plain = out if loads else reloading.decoded(out, tmp_path / f"{name}-plain")
        theirs = their_logits(plain, family)
        for mine, other in zip(program.logits(out, SAMPLES, tmp_path, options=["--export"]), theirs, strict=True):
            assert other.std() > 0.05 and (torch.from_numpy(mine) - other).abs().max() < 1e-4 * other.abs().max()
        own, nothing = reloading.divergence(theirs, their_logits(source, family))
        assert 0 < own < 0.02 * nothing
