#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace layerpress::quant {

/// The 32-bit words that so many codes of `bits` take.
inline std::int64_t packed_words(std::int64_t count, int bits) { return (count * bits + 31) / 32; }

/// Packs signed codes int8 [rows, columns] of `num_bits` (1..8) along the columns into int32 [rows,
/// packed_words]: offset binary (q + 2^(bits-1)), little-endian bit stream per row, elements straddling words,
/// zero padding bits. compressed-tensors >= 0.18, "pack-quantized". Multi-threaded.
at::Tensor pack_int32(const at::Tensor& codes, int num_bits);

/// The inverse: int32 [rows, words] to int8 [rows, columns]. Throws CheckpointError if the number of words does not
/// fit.
at::Tensor unpack_int32(const at::Tensor& packed, int num_bits, std::int64_t columns);

/// Packs four-bit codes uint8 [rows, columns], of which there is an even number, into uint8 [rows, columns / 2]: the even column
/// in the low half.
at::Tensor pack_nibbles(const at::Tensor& codes);

/// The inverse: uint8 [rows, bytes] to uint8 [rows, 2 * bytes].
at::Tensor unpack_nibbles(const at::Tensor& packed);

}  // namespace layerpress::quant
