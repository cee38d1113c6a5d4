"""The compressed-tensors formats in plain numpy: slow on purpose, written from the format's description alone."""

import numpy
import torch


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


class Stored:
    """What the tensors of one module say: codes, scale and zero point, each spread to the shape of the weight."""

    def __init__(self, tensors, module, scheme):
        args, parts = scheme["weights"], {n[len(module) + 1:]: t for n, t in tensors.items() if n.startswith(module + ".")}
        self.bits, self.args, self.parts = args["num_bits"], args, parts
        packed = scheme["format"] == "pack-quantized"
        if packed:
            rows, columns = parts["weight_shape"].tolist()
            self.codes = unpack(parts["weight_packed"].numpy(), self.bits, columns)
        elif args["type"] == "float":
            rows, columns = parts["weight"].shape
            self.codes = fp8_values(parts["weight"].view(torch.uint8).numpy())
        else:
            rows, columns = parts["weight"].shape
            self.codes = parts["weight"].numpy().astype(numpy.int64)
        assert self.codes.shape == (rows, columns)
        self.stored_scale = as_float(parts["weight_scale"])
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
    block = {"channel": [1, columns], "group": [1, args["group_size"]], "block": args["block_structure"]}[args["strategy"]]
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


def to_bf16(values):
    """fp32 rounded to the nearest bf16, ties to even, as fp32."""
    bits = numpy.ascontiguousarray(values, numpy.float32).view(numpy.uint32).astype(numpy.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return rounded.astype(numpy.uint32).view(numpy.float32)


def minmax_parameters(weight, args):
    """Scale (bf16) and zero point of the min-max observer, zero always inside the range."""
    low = numpy.minimum(blocks(weight, args).min(-1), 0)
    high = numpy.maximum(blocks(weight, args).max(-1), 0)
    largest = numpy.maximum(-low, high)
    least, greatest = -(1 << (args["num_bits"] - 1)), (1 << (args["num_bits"] - 1)) - 1
    if args["type"] == "float":
        return to_bf16(largest / numpy.float32(448)), None
    if args["symmetric"]:
        return to_bf16(largest / numpy.float32((greatest - least) / 2)), None
    scale = to_bf16((high - low) / numpy.float32(greatest - least))
    return scale, numpy.rint(numpy.clip(least - low / scale, least, greatest)).astype(numpy.int64)


def round_to_nearest(weight, stored):
    """Codes of the weight against stored scales, computed in fp32."""
    args = stored.args
    if args["type"] == "float":
        return nearest_fp8(numpy.clip(weight / stored.scale, -448, 448))
    least, greatest = -(1 << (args["num_bits"] - 1)), (1 << (args["num_bits"] - 1)) - 1
    return numpy.rint(numpy.clip(weight / stored.scale + stored.zero_point, least, greatest)).astype(numpy.int64)


def nearest_fp8(values):
    """The nearest E4M3 values, ties to an even code."""
    table = fp8_values(numpy.arange(0x7F))
    size = numpy.abs(values).astype(numpy.float64)
    above = numpy.clip(numpy.searchsorted(table, size), 1, len(table) - 1)
    to_lower, to_upper = size - table[above - 1], table[above] - size
    up = (to_upper < to_lower) | ((to_upper == to_lower) & (above % 2 == 0))
    return numpy.sign(values) * numpy.where(up, table[above], table[above - 1])
