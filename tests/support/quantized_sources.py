"""Checkpoints that are stored quantized, written by the formulas of each format, and their values as libraries read them."""

import json
import shutil

import numpy
import torch
from compressed_tensors.entrypoints.convert.converters import AutoAWQConverter, FP8BlockDequantizer, ModelOptNvfp4Converter
from compressed_tensors.quantization.utils import generate_gparam
from safetensors.torch import load_file, save_file
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

from support import any_model, reference, tiny_models

BLOCK = (48, 40)  # neither divides the sizes of the model
E2M1 = torch.from_numpy(reference.E2M1_VALUES)


def linears(tensors):
    """The weights of all linears but the head, as in most checkpoints."""
    return [name for name in tensors if name.endswith("_proj.weight")]


def fp8(values, scale):
    return (values.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


def padded(weight, block):
    rows, columns = (-size % each for size, each in zip(weight.shape, block))
    return torch.nn.functional.pad(weight, (0, columns, 0, rows))


def spread(scale, weight, block):
    """A scale per element."""
    whole = scale.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
    return whole[:weight.shape[0], :weight.shape[1]]


def fp8_block(module, weight, block=BLOCK):
    whole = padded(weight.float(), block)
    blocks = whole.reshape(whole.shape[0] // block[0], block[0], whole.shape[1] // block[1], block[1])
    scale = blocks.abs().amax((1, 3)) / 448
    parts = {"weight": fp8(weight, spread(scale, weight, block)), "weight_scale_inv": scale}
    judge = FP8BlockDequantizer(targets=[r"re:.*"], weight_block_size=block)
    return parts, judge.process({f"{module}.{name}": part for name, part in parts.items()})[f"{module}.weight"]


def fp8_powers(module, weight):
    """Blocks with e8m0 scales, as DeepSeek V3.1 has them."""
    parts, _ = fp8_block(module, weight)
    scale = torch.exp2(torch.ceil(torch.log2(parts["weight_scale_inv"])))
    parts = {"weight": fp8(weight, spread(scale, weight, BLOCK)), "weight_scale_inv": scale.to(torch.float8_e8m0fnu)}
    assert torch.equal(parts["weight_scale_inv"].float(), scale)
    return parts, (parts["weight"].float() * spread(scale, weight, BLOCK)).bfloat16()


def read_by_transformers(parts, scale):
    # Its class needs no model for one weight.
    judge = Fp8Dequantize(None)
    return judge._dequantize_one(parts["weight"], parts[scale], torch.bfloat16)


def mxfp8(module, weight):
    """A byte per 32 columns that is the exponent of its scale, as in MiniMax M3."""
    groups = weight.float().reshape(len(weight), -1, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 8
    codes = fp8(groups, torch.exp2(exponent).unsqueeze(-1)).reshape(weight.shape)
    parts = {"weight": codes, "weight_scale_inv": (exponent + 127).to(torch.uint8)}
    return parts, read_by_transformers(parts, "weight_scale_inv")


def fp4_with_powers(module, weight):
    """Two columns in a byte and a scale per 32, as in the experts of DeepSeek V4."""
    groups = weight.float().reshape(len(weight), -1, 32)
    exponent = torch.floor(torch.log2(groups.abs().amax(-1))) - 2
    codes = nearest_fp4(groups / torch.exp2(exponent).unsqueeze(-1)).reshape(weight.shape)
    parts = {"weight": nibbles(codes).view(torch.int8), "scale": torch.exp2(exponent).to(torch.float8_e8m0fnu)}
    return parts, read_by_transformers(parts, "scale")


def fp8_tensor(module, weight):
    scale = weight.float().abs().max() / 448
    parts = {"weight": fp8(weight, scale), "weight_scale": scale, "input_scale": torch.tensor(0.02)}
    return parts, (parts["weight"].float() * scale).bfloat16()


def fp8_channel(module, weight):
    scale = weight.float().abs().amax(1, keepdim=True) / 448
    parts = {"weight": fp8(weight, scale), "weight_scale": scale.bfloat16()}
    return parts, (parts["weight"].float() * parts["weight_scale"].float()).bfloat16()


def nearest_fp4(values):
    """Codes of the nearest values."""
    return (values.float().unsqueeze(-1) - E2M1).abs().argmin(-1).to(torch.uint8)


def nibbles(codes):
    return codes[:, 0::2] | codes[:, 1::2] << 4


def modelopt_nvfp4(module, weight):
    divisor = generate_gparam(weight.min(), weight.max())
    groups = weight.float().reshape(len(weight), -1, 16)
    scale = (groups.abs().amax(-1) / 6 * divisor).to(torch.float8_e4m3fn)
    codes = nearest_fp4(groups / (scale.float() / divisor).unsqueeze(-1)).reshape(weight.shape)
    parts = {"weight": nibbles(codes), "weight_scale": scale, "weight_scale_2": (1 / divisor).reshape(()),
             "input_scale": torch.tensor(0.001)}
    judge = ModelOptNvfp4Converter(targets=["re:.*"])
    read = {name.removeprefix(module + "."): part
            for name, part in judge.process({f"{module}.{name}": part for name, part in parts.items()}).items()}
    wide = read["weight_scale"].float() / read["weight_global_scale"]
    values = torch.from_numpy(reference.unpack_fp4(read["weight_packed"].numpy()))
    return parts, (values * wide.repeat_interleave(16, 1)).bfloat16()


def integers(weight, group, symmetric, bits=4):
    """Codes [rows, columns] from 0 on, zero points and fp16 scales [rows, groups]."""
    groups, most = weight.float().reshape(len(weight), -1, group), 2**bits - 1
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if symmetric:
        scale = (torch.maximum(-low, high) / (most / 2)).half()
        zero = torch.full(scale.shape, 2**(bits - 1))
    else:
        scale = ((high - low) / most).half()
        zero = (-low / scale.float()).round().clamp(0, most)
    codes = (groups / scale.float().unsqueeze(-1)).round().add(zero.unsqueeze(-1)).clamp(0, most)
    return codes.reshape(weight.shape).long(), zero.long(), scale


def words(fields, bits=4):
    """int64 [..., n] of a few bits to int32 [..., n * bits / 32]: a stream that begins with the lowest bit of the first word."""
    stream = (fields.unsqueeze(-1) >> torch.arange(bits) & 1).reshape(*fields.shape[:-1], -1, 32)
    return (stream << torch.arange(32)).sum(-1).to(torch.int32)


def gptq(module, weight, symmetric=True, sorts=False, version=1, bits=4, group=32):
    columns = weight.shape[1]
    generator = torch.Generator().manual_seed(columns)
    order = torch.randperm(columns, generator=generator) if sorts else torch.arange(columns)
    codes, zero, scale = integers(weight[:, order], group, symmetric, bits)
    index = torch.empty(columns, dtype=torch.int32)
    index[order] = torch.arange(columns, dtype=torch.int32) // group
    stored = torch.empty_like(codes)
    stored[:, order] = codes
    parts = {"qweight": words(stored, bits).T.contiguous(),
             "qzeros": words(zero.T - (1 if version == 1 else 0) & 2**bits - 1, bits),
             "scales": scale.T.contiguous(), "g_idx": index}
    values = (stored - zero[:, index.long()]) * scale.float()[:, index.long()]
    return parts, values.half()


def gptq_of_three_bits(module, weight):
    """With other settings for some modules, as GPTQModel and AutoRound write them."""
    own = {"down_proj": {"bits": 8}, "up_proj": {"group": 16}}.get(module.rsplit(".", 1)[-1], {})
    return gptq(module, weight, **{"bits": 3, **own})


def awq(module, weight, symmetric=False):
    group = 32
    codes, zero, scale = integers(weight, group, symmetric)
    if symmetric:  # AutoRound's scales have signs
        codes, scale = torch.where(codes > 0, 16 - codes, codes), -scale
    places = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
    parts = {"qweight": words(codes.T.reshape(weight.shape[1], -1, 8)[..., places]).squeeze(-1),
             "qzeros": words(zero.T.reshape(weight.shape[1] // group, -1, 8)[..., places]).squeeze(-1), "scales": scale.T.contiguous()}
    judge = AutoAWQConverter(group_size=group)
    read = judge._convert_gemm_module(parts["qweight"], parts["scales"], parts["qzeros"])
    values = [part.float() for part in read]
    return parts, ((values[0] - values[2].repeat_interleave(group, 1)) * values[1].repeat_interleave(group, 1)).half()


# Format, quantization_config, dtype of the rest.
FORMATS = {
    "fp8 block": (fp8_block, {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                              "weight_block_size": list(BLOCK)}, torch.bfloat16),
    "fp8 block, powers of two": (fp8_powers, {"quant_method": "fp8", "activation_scheme": "dynamic",
                                              "weight_block_size": list(BLOCK)}, torch.bfloat16),
    "fp8 tensor": (fp8_tensor, {"quant_method": "fp8", "activation_scheme": "static"}, torch.bfloat16),
    "fp8 channel": (fp8_channel, {"quant_method": "fp8", "activation_scheme": "dynamic"}, torch.bfloat16),
    "mxfp8": (mxfp8, {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [1, 32]}, torch.bfloat16),
    "fp4 with powers of two": (fp4_with_powers, {"quant_method": "fp8", "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
                                                 "weight_block_size": [128, 128]}, torch.bfloat16),
    "modelopt nvfp4": (modelopt_nvfp4, {"quant_method": "modelopt", "quant_algo": "NVFP4"}, torch.bfloat16),
    "modelopt fp8": (fp8_tensor, {"quant_method": "modelopt", "quant_algo": "FP8"}, torch.bfloat16),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}, torch.float16),
    "gptq asymmetric": (lambda module, weight: gptq(module, weight, symmetric=False),
                        {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, torch.float16),
    "gptq version 2": (lambda module, weight: gptq(module, weight, symmetric=False, version=2),
                       {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "checkpoint_format": "gptq_v2"},
                       torch.float16),
    "gptq in activation order": (lambda module, weight: gptq(module, weight, sorts=True),
                                 {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": True},
                                 torch.float16),
    "gptq of three bits": (gptq_of_three_bits, {"quant_method": "gptq", "bits": 3, "group_size": 32, "sym": True, "dynamic": {
        r"+:.*down_proj.*": {"bits": 8}, r"+:.*\.up_proj.*": {"group_size": 16}, r"-:.*lm_head.*": {}}}, torch.float16),
    "auto-round": (lambda module, weight: gptq(module, weight, symmetric=False, version=2),
                   {"quant_method": "auto-round", "packing_format": "auto_round", "bits": 4, "group_size": 32, "sym": False,
                    "data_type": "int", "extra_config": {"lm_head": {"bits": 16, "data_type": "float"}}}, torch.float16),
    "auto-round as gptq": (gptq_of_three_bits, {
        "quant_method": "auto-round", "packing_format": "auto_round:auto_gptq", "bits": 3, "group_size": 32, "sym": True, "extra_config": {
            "model.layers.0.mlp.down_proj": {"bits": 8}, ".*up_proj.*": {"group_size": 16}}}, torch.float16),
    "auto-round as awq": (lambda module, weight: awq(module, weight, symmetric=True), {
        "quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": 32, "sym": True}, torch.float16),
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}, torch.float16),
}


class QuantizedSource:
    """`folder`: the checkpoint; `values`: the same with dequantized weights; `parts`: the names of quantized tensors."""

    def __init__(self, folder, name, **settings):
        form, self.config, self.dtype = FORMATS[name]
        self.values = tiny_models.save(folder / "values", dtype=self.dtype, **settings)
        self.folder = folder / "quantized"
        shutil.copytree(self.values, self.folder)
        tensors, self.parts = load_file(self.values / "model.safetensors"), []
        stored = dict(tensors)
        for weight in linears(tensors):
            module = weight.removesuffix(".weight")
            parts, tensors[weight] = form(module, stored.pop(weight))
            for part, tensor in parts.items():
                stored[f"{module}.{part}"] = tensor.contiguous()
                self.parts.append(f"{module}.{part}")
        self.weights = linears(tensors)
        save(self.folder, stored, self.config)
        save(self.values, tensors)

    def change(self, name, change):
        """Stores `change(tensor)` instead, or nothing for None."""
        tensors = tiny_models.tensors(self.folder)
        changed = change(tensors.pop(name))
        save(self.folder, tensors if changed is None else {**tensors, name: changed})


def save(folder, tensors, quantization=None):
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors",
              metadata={"format": "pt"})
    if quantization is not None:
        tiny_models.rewrite_config(folder, lambda config: config.update(quantization_config=quantization))


def gpt_oss_blocks(experts, rows, columns, seed=0):
    """Random blocks and scales of stacked experts, and their values as transformers reads them."""
    from transformers.integrations.mxfp4 import _convert_moe_packed_tensors

    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8, generator=generator)
    scales = torch.randint(118, 124, (experts, rows, columns // 32), dtype=torch.uint8, generator=generator)
    return blocks, scales, _convert_moe_packed_tensors(blocks, scales)


def save_gpt_oss(folder):
    """A checkpoint with mxfp4 experts, and one with their values."""
    values = any_model.save(folder / "values", "gpt_oss", dtype=torch.bfloat16, hidden_size=64, intermediate_size=32)
    quantized = shutil.copytree(values, folder / "quantized")
    tensors = tiny_models.tensors(values)
    stored = dict(tensors)
    for seed, name in enumerate(sorted(tensors)):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, columns, rows = stored.pop(name).shape
            blocks, scales, tensors[name] = gpt_oss_blocks(experts, rows, columns, seed)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    save(quantized, stored, {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    save(values, tensors)
    return quantized, values


def equal_bytes(ours, theirs):
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and numpy.array_equal(
        ours.contiguous().view(torch.uint8).numpy(), theirs.contiguous().view(torch.uint8).numpy())


def read_json(path):
    return json.loads(path.read_text())
