// Eight codes take exactly `bits` bytes of the little-endian stream, for every width. Codes are therefore packed eight
// at a time inside a 64-bit register, and 32-bit words matter only at the end of a row.
#include "layerpress/quant/pack.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "layerpress/base/error.h"

namespace layerpress::quant {
namespace {

static_assert(std::endian::native == std::endian::little, "checkpoints are little-endian");

constexpr std::int64_t kElementsPerTask = 1 << 16;

/// `value` in each of the lanes of `lane_bits` bits of a 64-bit register.
constexpr std::uint64_t in_lanes(int lane_bits, std::uint64_t value) {
  std::uint64_t all = 0;
  for (int lane = 0; lane < 64; lane += lane_bits) all |= value << lane;
  return all;
}

constexpr std::uint64_t low_bits(int count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

/// Moves the value in the upper half of every lane down next to the value in the lower half; each has `width` bits.
constexpr std::uint64_t join_halves(std::uint64_t x, int lane_bits, int width) {
  return (x & in_lanes(lane_bits, low_bits(width))) |
         ((x >> (lane_bits / 2 - width)) & in_lanes(lane_bits, low_bits(width) << width));
}

/// The inverse of join_halves.
constexpr std::uint64_t part_halves(std::uint64_t x, int lane_bits, int width) {
  return (x & in_lanes(lane_bits, low_bits(width))) |
         ((x & in_lanes(lane_bits, low_bits(width) << width)) << (lane_bits / 2 - width));
}

/// Eight signed bytes to 8 * kBits bits: offset to unsigned, then halve the number of lanes three times.
template <int kBits>
constexpr std::uint64_t squeeze(std::uint64_t codes) {
  std::uint64_t x = (codes ^ in_lanes(8, std::uint64_t{1} << (kBits - 1))) & in_lanes(8, low_bits(kBits));
  if constexpr (kBits < 8) {
    x = join_halves(x, 16, kBits);
    x = join_halves(x, 32, 2 * kBits);
    x = join_halves(x, 64, 4 * kBits);
  }
  return x;
}

/// The inverse of squeeze.
template <int kBits>
constexpr std::uint64_t spread(std::uint64_t x) {
  if constexpr (kBits < 8) {
    x = part_halves(x, 64, 4 * kBits);
    x = part_halves(x, 32, 2 * kBits);
    x = part_halves(x, 16, kBits);
    // Subtract the offset in each byte; the high bit keeps borrows from crossing into the next one.
    constexpr std::uint64_t kHigh = in_lanes(8, 0x80);
    return ((x | kHigh) - in_lanes(8, std::uint64_t{1} << (kBits - 1))) ^ kHigh;
  }
  return x ^ in_lanes(8, 0x80);
}

template <int kBits>
void pack_row(const std::int8_t* codes, std::int64_t columns, std::uint8_t* bytes, std::int64_t row_bytes) {
  const std::int64_t blocks = columns / 8;
  for (std::int64_t i = 0; i < blocks; ++i) {
    std::uint64_t x;
    std::memcpy(&x, codes + 8 * i, 8);
    x = squeeze<kBits>(x);
    std::memcpy(bytes + kBits * i, &x, kBits);
  }
  const std::int64_t rest = columns - 8 * blocks;
  const std::int64_t done = kBits * blocks;
  if (done < row_bytes) std::memset(bytes + done, 0, static_cast<std::size_t>(row_bytes - done));
  if (rest == 0) return;
  std::uint64_t x = 0;
  std::memcpy(&x, codes + 8 * blocks, static_cast<std::size_t>(rest));
  x = squeeze<kBits>(x) & low_bits(static_cast<int>(rest) * kBits);
  std::memcpy(bytes + done, &x, static_cast<std::size_t>((rest * kBits + 7) / 8));
}

template <int kBits>
void unpack_row(const std::uint8_t* bytes, std::int64_t row_bytes, std::int64_t columns, std::int8_t* codes) {
  const std::int64_t blocks = columns / 8;
  const auto unpack_block = [&](std::int64_t i, std::size_t available) {
    std::uint64_t x = 0;
    std::memcpy(&x, bytes + kBits * i, available);
    x = spread<kBits>(x);
    std::memcpy(codes + 8 * i, &x, 8);
  };
  std::int64_t i = 0;
  // Odd widths load eight bytes at once where the row still has them; spread() drops the surplus bits.
  if constexpr (kBits % 2 != 0 || kBits == 6)
    for (const std::int64_t safe = std::min(blocks, (row_bytes - 8) / kBits); i < safe; ++i) unpack_block(i, 8);
  for (; i < blocks; ++i) unpack_block(i, kBits);
  const std::int64_t rest = columns - 8 * blocks;
  if (rest == 0) return;
  std::uint64_t x = 0;
  std::memcpy(&x, bytes + kBits * blocks, static_cast<std::size_t>((rest * kBits + 7) / 8));
  x = spread<kBits>(x);
  std::memcpy(codes + 8 * blocks, &x, static_cast<std::size_t>(rest));
}

/// Calls `function.template operator()<bits>()` with the width as a constant.
template <typename Function>
void with_bits(int bits, Function&& function) {
  switch (bits) {
    case 1:
      return function.template operator()<1>();
    case 2:
      return function.template operator()<2>();
    case 3:
      return function.template operator()<3>();
    case 4:
      return function.template operator()<4>();
    case 5:
      return function.template operator()<5>();
    case 6:
      return function.template operator()<6>();
    case 7:
      return function.template operator()<7>();
    case 8:
      return function.template operator()<8>();
    default:
      throw InternalError("[quant.pack] {} bits; 1 to 8 can be packed", bits);
  }
}

std::int64_t rows_per_task(std::int64_t columns) {
  return std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, columns));
}

}  // namespace

at::Tensor pack_int32(const at::Tensor& codes, int num_bits) {
  if (codes.dim() != 2 || codes.scalar_type() != at::kChar)
    throw InternalError("[quant.pack] codes must be int8 [rows, columns], found {} dimensions of {}", codes.dim(),
                        c10::toString(codes.scalar_type()));
  const at::Tensor source = codes.to(at::kCPU).contiguous();
  const std::int64_t rows = source.size(0);
  const std::int64_t columns = source.size(1);
  const std::int64_t words = packed_words(columns, num_bits);
  at::Tensor packed = at::empty({rows, words}, at::kInt);
  const auto* in = source.const_data_ptr<std::int8_t>();
  auto* out = reinterpret_cast<std::uint8_t*>(packed.mutable_data_ptr<std::int32_t>());
  with_bits(num_bits, [&]<int kBits>() {
    at::parallel_for(0, rows, rows_per_task(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        pack_row<kBits>(in + row * columns, columns, out + 4 * row * words, 4 * words);
    });
  });
  return packed;
}

at::Tensor unpack_int32(const at::Tensor& packed, int num_bits, std::int64_t columns) {
  if (packed.dim() != 2 || packed.scalar_type() != at::kInt)
    throw CheckpointError("[quant.unpack] packed codes must be int32 [rows, words], found {} dimensions of {}",
                          packed.dim(), c10::toString(packed.scalar_type()));
  const std::int64_t rows = packed.size(0);
  const std::int64_t words = packed.size(1);
  // The first comparison keeps columns * num_bits from overflowing for a hostile number of columns.
  if (columns < 0 || columns / 32 > words || packed_words(columns, num_bits) != words)
    throw CheckpointError("[quant.unpack] {} columns of {} bits do not make {} words per row", columns, num_bits,
                          words);
  const at::Tensor source = packed.to(at::kCPU).contiguous();
  at::Tensor codes = at::empty({rows, columns}, at::kChar);
  const auto* in = reinterpret_cast<const std::uint8_t*>(source.const_data_ptr<std::int32_t>());
  auto* out = codes.mutable_data_ptr<std::int8_t>();
  with_bits(num_bits, [&]<int kBits>() {
    at::parallel_for(0, rows, rows_per_task(columns), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row)
        unpack_row<kBits>(in + 4 * row * words, 4 * words, columns, out + row * columns);
    });
  });
  return codes;
}

namespace {

void require_bytes(const at::Tensor& tensor) {
  if (tensor.dim() != 2 || tensor.scalar_type() != at::kByte)
    throw InternalError("[quant.pack] four-bit codes must be uint8 [rows, columns], found {} dimensions of {}",
                        tensor.dim(), c10::toString(tensor.scalar_type()));
}

}  // namespace

at::Tensor pack_nibbles(const at::Tensor& codes) {
  require_bytes(codes);
  if (codes.size(1) % 2 != 0)
    throw InternalError("[quant.pack] {} four-bit codes of a row do not fill bytes", codes.size(1));
  const at::Tensor pairs = codes.to(at::kCPU).contiguous().view({codes.size(0), -1, 2});
  return pairs.select(2, 0).bitwise_and(0xF).bitwise_or(pairs.select(2, 1).bitwise_left_shift(4));
}

at::Tensor unpack_nibbles(const at::Tensor& packed) {
  require_bytes(packed);
  const at::Tensor source = packed.to(at::kCPU);
  return at::stack({source.bitwise_and(0xF), source.bitwise_right_shift(4)}, 2).flatten(1);
}

}  // namespace layerpress::quant
