"""The compressed-tensors formats in plain numpy: slow on purpose, written from the format's description alone.

How a range becomes a scale is compressed-tensors' own function, because scales shall equal its scales."""

import numpy
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.utils import calculate_qparams


def as_float(tensor):
    """A torch tensor of bf16, fp16 or fp32 as fp32, exactly."""
    return tensor.float().numpy()


def unpack(words, bits, count):
    """Codes of rows of int32 words: element i is bits [i * bits, (i + 1) * bits) of the row, its sign bit flipped."""
    stream = numpy.unpackbits(numpy.ascontiguousarray(words).view(numpy.uint8), axis=1, bitorder="little")
    assert not stream[:, count * bits:].any(), "the end of a row is filled with zero bits"
    fields = stream[:, :count * bits].reshape(len(words), count, bits).astype(numpy.int64)
    return (fields << numpy.arange(bits)).sum(-1) - (1 << (bits - 1))


def fp8_values(bytes_):
    """E4M3 without infinities: sign, four bits of exponent (bias 7), three of mantissa."""
    byte = bytes_.astype(numpy.int64)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    assert not (byte & 0x7F == 0x7F).any(), "a code is NaN"
    size = numpy.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)
    return numpy.where(byte >> 7 == 1, -size, size)


E2M1_VALUES = numpy.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], numpy.float32)


def unpack_fp4(packed):
    """Two codes per byte, the even column in the low half."""
    return E2M1_VALUES[numpy.stack([packed & 15, packed >> 4], -1).reshape(len(packed), -1)]


def scales_of(parts):
    """Scales as fp32, from any stored type."""
    stored = parts["weight_scale"]
    if stored.dtype == torch.uint8:
        return (2.0 ** (stored.numpy().astype(numpy.float64) - 127)).astype(numpy.float32)
    if stored.dtype != torch.float8_e4m3fn:
        return as_float(stored)
    assert parts["weight_global_scale"].dtype == torch.float32 and parts["weight_global_scale"].shape == (1,)
    return fp8_values(stored.view(torch.uint8).numpy()).astype(numpy.float32) / parts["weight_global_scale"].numpy()


class Stored:
    """The contents of one module's tensors: codes, scale and zero point, each expanded to the shape of the weight."""

    def __init__(self, tensors, module, scheme):
        args, parts = scheme["weights"], {n[len(module) + 1:]: t for n, t in tensors.items() if n.startswith(module + ".")}
        self.bits, self.args, self.parts = args["num_bits"], args, parts
        packed = scheme["format"] == "pack-quantized"
        if packed:
            rows, columns = parts["weight_shape"].tolist()
            self.codes = unpack(parts["weight_packed"].numpy(), self.bits, columns)
        elif "weight_packed" in parts:
            self.codes = unpack_fp4(parts["weight_packed"].numpy())
            rows, columns = self.codes.shape
        elif args["type"] == "float":
            rows, columns = parts["weight"].shape
            self.codes = fp8_values(parts["weight"].view(torch.uint8).numpy())
        else:
            rows, columns = parts["weight"].shape
            self.codes = parts["weight"].numpy().astype(numpy.int64)
        assert self.codes.shape == (rows, columns)
        self.stored_scale = scales_of(parts)
        self.scale = spread(self.stored_scale, args, rows, columns)
        self.zero_point = numpy.zeros((rows, columns), numpy.int64)
        if not args["symmetric"]:
            zero_point = parts["weight_zero_point"].numpy()
            if packed and args["strategy"] != "tensor":
                zero_point = unpack(zero_point.T, self.bits, rows).T
            self.zero_point = spread(zero_point, args, rows, columns)

    def weight(self):
        """fp32, one rounding."""
        return ((self.codes - self.zero_point).astype(numpy.float32) * self.scale).astype(numpy.float32)


def spread(parameters, args, rows, columns):
    """One value per element from one per tensor, row, group of columns or block."""
    if args["strategy"] == "tensor":
        assert parameters.shape == (1,)
        return numpy.broadcast_to(parameters.reshape(1, 1), (rows, columns))
    block = {"channel": [1, columns], "group": [1, args["group_size"]], "tensor_group": [1, args["group_size"]],
             "block": args["block_structure"]}[args["strategy"]]
    assert parameters.shape == (-(-rows // block[0]), -(-columns // block[1]))
    return parameters.repeat(block[0], 0).repeat(block[1], 1)[:rows, :columns]


def blocks(weight, args):
    """The weight cut as its scales are: [block rows, block columns, elements], filled with zeros at the edges."""
    rows, columns = weight.shape
    block = {"tensor": [rows, columns], "channel": [1, columns], "group": [1, args["group_size"]],
             "block": args["block_structure"]}[args["strategy"]]
    padded = numpy.zeros((-(-rows // block[0]) * block[0], -(-columns // block[1]) * block[1]), numpy.float32)
    padded[:rows, :columns] = weight
    shape = (padded.shape[0] // block[0], block[0], padded.shape[1] // block[1], block[1])
    return padded.reshape(shape).transpose(0, 2, 1, 3).reshape(shape[0], shape[2], -1)


def range_parameters(low, high, args, dtype):
    """Scale and zero point of ranges as compressed-tensors computes them in a dtype; ranges are rounded to it first."""
    low, high = torch.from_numpy(low).to(dtype), torch.from_numpy(high).to(dtype)
    scale, zero_point = calculate_qparams(low, high, QuantizationArgs.model_validate(args))
    return as_float(scale), None if args["symmetric"] else zero_point.numpy().astype(numpy.int64)


def minmax_parameters(weight, args, dtype=torch.bfloat16):
    """Scale and zero point of the min-max observer."""
    return range_parameters(blocks(weight, args).min(-1), blocks(weight, args).max(-1), args, dtype)


def mse_parameters(weight, args, dtype, maxshrink=0.2, grid=100, norm=2.4, patience=5, expand=1):
    """Scale and zero point of the mse observer: of ranges that shrink step by step, for each block the one with the least
    error, and no more ranges once so many in a row were better for no block of the weight."""
    cut = blocks(weight, args).astype(numpy.float64)
    low, high = blocks(weight, args).min(-1) * numpy.float32(expand), blocks(weight, args).max(-1) * numpy.float32(expand)
    least, best, idle = None, None, 0
    for step in range(int(maxshrink * grid)):
        factor = numpy.float32(1 - step / grid)
        scale, zero_point = range_parameters(low * factor, high * factor, args, dtype)
        offset = numpy.zeros(low.shape) if zero_point is None else zero_point
        codes = nearest_codes(cut, scale[..., None], offset[..., None], args)
        error = (numpy.abs((codes - offset[..., None]) * scale[..., None] - cut) ** norm).sum(-1)
        better = numpy.full(low.shape, True) if least is None else error < least
        idle = 0 if better.any() else idle + 1
        if idle == patience:
            break
        least = error if least is None else numpy.where(better, error, least)
        best = (scale, offset) if step == 0 else (numpy.where(better, scale, best[0]), numpy.where(better, offset, best[1]))
    return best[0], None if args["symmetric"] else best[1]


def round_to_nearest(weight, stored):
    """Codes of the weight against stored scales, computed in fp32."""
    codes = nearest_codes(weight, stored.scale, stored.zero_point, stored.args)
    return codes if stored.args["type"] == "float" else codes.astype(numpy.int64)


def nearest_codes(values, scale, zero_point, args):
    """Integers, or fp8 values."""
    if args["type"] == "float":
        return nearest_fp8(numpy.clip(values / scale, -448, 448))
    least, greatest = -(1 << (args["num_bits"] - 1)), (1 << (args["num_bits"] - 1)) - 1
    return numpy.rint(numpy.clip(values / scale + zero_point, least, greatest))


def nearest_fp8(values):
    """The nearest E4M3 values, ties to an even code."""
    table = fp8_values(numpy.arange(0x7F))
    size = numpy.abs(values).astype(numpy.float64)
    above = numpy.clip(numpy.searchsorted(table, size), 1, len(table) - 1)
    to_lower, to_upper = size - table[above - 1], table[above] - size
    up = (to_upper < to_lower) | ((to_upper == to_lower) & (above % 2 == 0))
    return numpy.sign(values) * numpy.where(up, table[above], table[above - 1])
