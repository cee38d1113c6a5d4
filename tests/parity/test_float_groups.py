"""NVFP4, MXFP4 and MXFP8 byte by byte: what compressed-tensors itself makes of min-max ranges, as LLM Compressor calls it."""

import json

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from compressed_tensors.quantization.lifecycle import fake_quantize
from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
from safetensors.torch import save_file
from support import compressed_cases, program, tiny_models

SCHEMES = ["NVFP4A16", "MXFP4A16", "MXFP8A16"]
FAMILIES = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("q_a_proj", "kv_a_proj_with_mqa"), ("w1", "w3")]


def family_of(module, weights):
    """The modules that engines fuse with this one, itself included, and that are there."""
    parent, leaf = module.rsplit(".", 1)
    for family in FAMILIES:
        if leaf in family:
            return [f"{parent}.{name}" for name in family if f"{parent}.{name}" in weights]
    return [module]


def whole_ranges(groups, args):
    """LLM Compressor's min-max observer."""
    return groups.amin(-1), groups.amax(-1)


def expanded_ranges(groups, args):
    """LLM Compressor's nvfp4_expanded_mse: of 1.8 times the range down to 0.8 times it, the one with the smallest error."""
    args = args.model_copy(update={"scale_dtype": None, "strategy": "token"})
    least, most = groups.amin(-1) * 1.8, groups.amax(-1) * 1.8
    best, chosen = torch.full_like(least, torch.finfo(least.dtype).max), [least.clone(), most.clone()]
    for step in range(int((1 - 0.8 / 1.8) * 200)):
        low, high = least * (1 - step / 200), most * (1 - step / 200)
        scale, zero_point = calculate_qparams(low, high, args)
        rounded = fake_quantize(groups, scale.unsqueeze(-1), zero_point.unsqueeze(-1), args)
        error = (rounded - groups).abs().pow(2.4).sum(-1)
        better = error < best
        best[better] = error[better]
        chosen[0][better], chosen[1][better] = low[better], high[better]
    return chosen


def made_by_the_library(module, weights, scheme, ranges=whole_ranges):
    """The tensors that the library stores for a module, from ranges of its groups."""
    args, weight = scheme.weights, weights[module]
    groups = lambda name: weights[name].unflatten(-1, (-1, args.group_size))
    state = {"weight": weight}
    least, most = ranges(groups(module), args)
    if args.strategy == "tensor_group":
        largest = max(max(-low.min(), high.max()) for low, high in
                      (ranges(groups(name), args) for name in family_of(module, weights))).reshape(1)
        state["weight_global_scale"] = generate_gparam(-largest, largest)
    scale, zero_point = calculate_qparams(least, most, args, state.get("weight_global_scale"))
    state |= {"weight_scale": scale, "weight_zero_point": zero_point}
    return BaseCompressor.get_value_from_registry(scheme.format).compress(state, scheme)


def compare(model, folder, capsys, ranges=whole_ranges):
    """Prints and returns the share of equal bytes of every kind of tensor."""
    [scheme] = json.loads((folder / "config.json").read_text())["quantization_config"]["config_groups"].values()
    scheme, written = QuantizationScheme.model_validate(scheme), tiny_models.tensors(folder)
    modules = [name.removesuffix(".weight_scale") for name in written if name.endswith(".weight_scale")]
    originals = tiny_models.tensors(model)
    weights = {module: originals[f"{module}.weight"] for module in modules}
    equal, all_of_them = {}, {}
    for module in modules:
        for suffix, wanted in made_by_the_library(module, weights, scheme, ranges).items():
            ours = written[f"{module}.{suffix}"]
            assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), (module, suffix)
            same = ours.view(torch.uint8) == wanted.contiguous().view(torch.uint8)
            equal[suffix] = equal.get(suffix, 0) + int(same.sum())
            all_of_them[suffix] = all_of_them.get(suffix, 0) + same.numel()
    shares = {suffix: equal[suffix] / all_of_them[suffix] for suffix in equal}
    with capsys.disabled():
        print(f"\n{scheme.format}: {len(modules)} modules,",
              ", ".join(f"{suffix} {share:.4%} of {all_of_them[suffix]} bytes" for suffix, share in sorted(shares.items())))
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


@pytest.mark.parametrize("observer", ["nvfp4_expanded_mse", "fouroversix"])
def test_expanded_ranges(observer, tmp_path, capsys):
    """The peer chooses ranges for scales in the weight's dtype, and the global scale follows from them. Errors that are almost equal
    are summed otherwise."""
    model = tiny_models.save(tmp_path / "model", **compressed_cases.SIZES)
    out = program.oneshot(model, tmp_path / "out", "--algorithm", "rtn", "--observer", observer, "--scheme", "NVFP4A16")
    shares = compare(model, out, capsys, expanded_ranges)
    assert shares["weight_scale"] > 0.999 and shares["weight_packed"] > 0.999 and shares["weight_global_scale"] == 1


@pytest.mark.parametrize("scheme", ["NVFP4A16", "MXFP4A16"])
def test_searched_scales_lose_less(scheme, tmp_path):
    """The exponents next to the range's (MX) and shrunken ranges (NVFP4) are tried by error."""
    model = tiny_models.save(tmp_path / "model", dtype=torch.bfloat16, **compressed_cases.SIZES)
    errors = {}
    for observer in ("minmax", "mse", "nvfp4_expanded_mse"):
        summary = tmp_path / f"{observer}.json"
        program.oneshot(model, tmp_path / observer, "--algorithm", "rtn", "--observer", observer, "--scheme", scheme,
                        "--summary", summary)
        modules = json.loads(summary.read_text())["modules"]
        errors[observer] = sum(module["weight_error"] for module in modules)
    assert errors["mse"] < errors["minmax"]
    assert scheme != "NVFP4A16" or errors["nvfp4_expanded_mse"] < errors["mse"]
