"""NVFP4, MXFP4 and MXFP8 byte by byte: what compressed-tensors itself makes of min-max ranges, as LLM Compressor calls it."""

import functools
import json

import pytest
import torch
from compressed_tensors.quantization.lifecycle import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file
from support import compressed_cases, preset_runs, program, tiny_models
from support.library_weights import shares_of_equal_bytes, whole_ranges

SCHEMES = ["NVFP4A16", "MXFP4A16", "MXFP8A16"]


def searched_ranges(groups, args, expand, maxshrink, grid, patience):
    """LLM Compressor's search: of `expand` times the range down to 1 - `maxshrink` of that, the one with the smallest error, no further after
    `patience` ranges that were better for no group."""
    args = args.model_copy(update={"scale_dtype": None, "strategy": "token"})
    least, most = groups.amin(-1) * expand, groups.amax(-1) * expand
    best, chosen, idle = torch.full_like(least, torch.finfo(least.dtype).max), [least.clone(), most.clone()], 0
    for step in range(int(maxshrink * grid)):
        low, high = least * (1 - step / grid), most * (1 - step / grid)
        scale, zero_point = calculate_qparams(low, high, args)
        rounded = fake_quantize(groups, scale.unsqueeze(-1), zero_point.unsqueeze(-1), args)
        error = (rounded - groups).abs().pow(2.4).sum(-1)
        better = error < best
        best[better] = error[better]
        chosen[0][better], chosen[1][better] = low[better], high[better]
        idle = 0 if better.any() else idle + 1
        if idle >= patience:
            break
    return chosen


# The observers nvfp4_expanded_mse and mse.
expanded_ranges = functools.partial(searched_ranges, expand=1.8, maxshrink=1 - 0.8 / 1.8, grid=200, patience=1000)
shrunken_ranges = functools.partial(searched_ranges, expand=1, maxshrink=0.2, grid=100, patience=5)


def compare(model, folder, capsys, ranges=whole_ranges):
    """Prints and returns the share of equal bytes of every kind of tensor."""
    shares, said = shares_of_equal_bytes(model, folder, ranges)
    with capsys.disabled():
        print(f"\n{said}")
    return shares


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_dense_model(scheme, dtype, tmp_path, capsys):
    model = tiny_models.save(tmp_path / "model", dtype=dtype, **compressed_cases.SIZES)
    out = program.oneshot(model, tmp_path / "out", "--algorithm", "rtn", "--observer", "minmax", "--scheme", scheme)
    assert set(compare(model, out, capsys).values()) == {1.0}


@pytest.mark.parametrize("family,more", [
    ("Qwen3Moe", {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32}),
    ("DeepseekV3", {"intermediate_size": 128, "moe_intermediate_size": 64, "q_lora_rank": 64, "kv_lora_rank": 32})])
def test_experts_and_latent_attention(family, more, tmp_path, capsys):
    """Every expert's gate and up share a global scale, and so do both projections down of latent attention."""
    model = tiny_models.save(tmp_path / "model", family, dtype=torch.bfloat16, **{"hidden_size": 128, **more})
    out = program.oneshot(model, tmp_path / "out", "--algorithm", "rtn", "--observer", "minmax", "--scheme", "NVFP4A16",
                          "--ignore", "lm_head", "re:.*mlp.gate$")
    assert set(compare(model, out, capsys).values()) == {1.0}


def test_awkward_weights(tmp_path, capsys):
    """Groups of zeros, of nothing but tiny values, single large values, values in the middle between two codes."""
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16, **compressed_cases.SIZES)
    tensors = tiny_models.tensors(model)
    for name, tensor in tensors.items():
        if name.endswith("_proj.weight"):
            tensor[0] = 0
            tensor[1] = -0.0
            tensor[2] *= 1e-6
            tensor[3, ::16] = 40
            tensor[4] = torch.arange(tensor.shape[1]).remainder(49) / 4 - 6
            tensor[5] *= 1e-30
    save_file(tensors, model / "model.safetensors", {"format": "pt"})
    for scheme in SCHEMES:
        out = program.oneshot(model, tmp_path / scheme, "--algorithm", "rtn", "--observer", "minmax", "--scheme", scheme)
        assert set(compare(model, out, capsys).values()) == {1.0}


def test_shrunken_ranges(tmp_path, capsys):
    """The global scale follows from the chosen ranges, too."""
    model = tiny_models.save(tmp_path / "model", **preset_runs.SIZES)
    out = program.oneshot(model, tmp_path / "out", "--algorithm", "rtn", "--observer", "mse", "--scheme", "NVFP4A16")
    shares = compare(model, out, capsys, shrunken_ranges)
    assert shares["weight_scale"] > 0.998 and shares["weight_packed"] > 0.998 and shares["weight_global_scale"] > 0.7
    plain = program.oneshot(model, tmp_path / "plain", "--algorithm", "rtn", "--observer", "minmax", "--scheme", "NVFP4A16")
    before, after = (tiny_models.tensors(folder) for folder in (plain, out))
    assert any(after[name] > 1.001 * before[name] for name in after if name.endswith("weight_global_scale"))


def test_expanded_ranges(tmp_path, capsys):
    """The peer chooses ranges for scales in the weight's dtype, and the global scale follows from them. Errors that are almost equal
    are summed otherwise, and a range out of its scale may have another last bit. Both names of the observer mean the same."""
    model = tiny_models.save(tmp_path / "model", **preset_runs.SIZES)
    named = lambda observer: program.oneshot(model, tmp_path / observer, "--algorithm", "rtn", "--observer", observer, "--scheme",
                                             "NVFP4A16")
    shares = compare(model, named("nvfp4_expanded_mse"), capsys, expanded_ranges)
    assert shares["weight_scale"] > 0.998 and shares["weight_packed"] > 0.998 and shares["weight_global_scale"] > 0.9
    first, second = tiny_models.tensors(tmp_path / "nvfp4_expanded_mse"), tiny_models.tensors(named("fouroversix"))
    assert all(torch.equal(first[name].view(torch.uint8), second[name].view(torch.uint8)) for name in first | second)


@pytest.mark.parametrize("scheme", ["NVFP4A16", "MXFP4A16"])
def test_searched_scales_lose_less(scheme, tmp_path):
    """The exponents next to the range's (MX) and shrunken ranges (NVFP4) are tried by error."""
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16, **compressed_cases.SIZES)
    errors = {}
    for observer in ("minmax", "mse", "nvfp4_expanded_mse", "squared_error"):
        summary = tmp_path / f"{observer}.json"
        program.oneshot(model, tmp_path / observer, "--algorithm", "rtn", "--observer", observer, "--scheme", scheme,
                        "--summary", summary)
        modules = json.loads(summary.read_text())["modules"]
        errors[observer] = sum(module["weight_error"] for module in modules)
    assert errors["mse"] < errors["minmax"]
    assert scheme != "NVFP4A16" or errors["squared_error"] < errors["nvfp4_expanded_mse"] < errors["mse"]


def test_fused_linears_of_several_dtypes(tmp_path):
    """Linears that engines run as one have one global scale, even where it is rounded from weights of different dtypes."""
    source = tiny_models.save(tmp_path / "model")
    dtypes = (torch.bfloat16, torch.float16, torch.float32)
    mixed = {name: tensor.to(dtypes[place % 3]) for place, (name, tensor) in enumerate(sorted(tiny_models.tensors(source).items()))}
    tiny_models.rewrite_tensors(source, mixed)
    samples = program.write_samples(tmp_path / "samples.jsonl", tiny_models.random_samples([40, 64, 33]))
    out = program.oneshot(source, tmp_path / "out", "--scheme", "NVFP4", "--dataset", samples)
    tensors = tiny_models.tensors(out)
    for fused in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
        assert len({mixed[f"model.layers.0.{name}.weight"].dtype for name in fused}) > 1
        for scale in ("weight_global_scale", "input_global_scale"):
            assert len({tensors[f"model.layers.0.{name}.{scale}"].item() for name in fused}) == 1
    program.run("verify", out, "--source", source)
