#include "layerpress/source/packed_integers.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>

#include "layerpress/base/error.h"

namespace layerpress::source {
namespace {

constexpr std::int64_t kTile = 16;  // words of a cache line
constexpr std::array<int, 8> kAwqOrder = {0, 2, 4, 6, 1, 3, 5, 7};

}  // namespace

at::Tensor codes_packed_along_inputs(const at::Tensor& words, int bits) {
  const std::int64_t word_rows = words.size(0), outputs = words.size(1), inputs = word_rows * 32 / bits;
  const at::Tensor source = words.contiguous();
  at::Tensor codes = at::empty({outputs, inputs}, at::kChar);
  const auto* in = reinterpret_cast<const std::uint32_t*>(source.const_data_ptr<std::int32_t>());
  auto* out = codes.mutable_data_ptr<std::int8_t>();
  const std::uint64_t mask = (1u << bits) - 1;
  const int middle = 1 << (bits - 1);
  const auto first_in = [&](std::int64_t row) { return std::min((row * 32 + bits - 1) / bits, inputs); };
  at::parallel_for(0, (outputs + kTile - 1) / kTile, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin * kTile; first < std::min(end * kTile, outputs); first += kTile)
      for (std::int64_t row = 0; row < word_rows; ++row)
        for (std::int64_t n = first; n < std::min(first + kTile, outputs); ++n) {
          const std::uint64_t next = row + 1 < word_rows ? in[(row + 1) * outputs + n] : 0;
          const std::uint64_t window = next << 32 | in[row * outputs + n];
          std::int8_t* target = out + n * inputs;
          for (std::int64_t k = first_in(row); k < first_in(row + 1); ++k)
            target[k] = static_cast<std::int8_t>(static_cast<int>((window >> (k * bits - row * 32)) & mask) - middle);
        }
  });
  return codes;
}

at::Tensor codes_in_awq_order(const at::Tensor& words) {
  constexpr std::int64_t kPerWord = 8, kInputs = 64;
  const std::int64_t inputs = words.size(0), word_columns = words.size(1), outputs = word_columns * kPerWord;
  const at::Tensor source = words.contiguous();
  at::Tensor codes = at::empty({outputs, inputs}, at::kChar);
  const auto* in = reinterpret_cast<const std::uint32_t*>(source.const_data_ptr<std::int32_t>());
  auto* out = codes.mutable_data_ptr<std::int8_t>();
  at::parallel_for(0, word_columns, kTile, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = 0; first < inputs; first += kInputs)
      for (std::int64_t column = begin; column < end; ++column)
        for (int i = 0; i < kPerWord; ++i) {
          std::int8_t* target = out + (column * kPerWord + kAwqOrder[static_cast<std::size_t>(i)]) * inputs;
          for (std::int64_t k = first; k < std::min(first + kInputs, inputs); ++k)
            target[k] = static_cast<std::int8_t>(static_cast<int>((in[k * word_columns + column] >> (4 * i)) & 15) - 8);
        }
  });
  return codes;
}

void require_group_size(std::int64_t group_size, const std::string& format, const std::string& where) {
  if (group_size == 0 || group_size < -1)
    throw CheckpointError("[source.{}] {}: group_size is {}", format, where, group_size);
}

std::string groups_description(const std::string& format, int bits, std::int64_t group_size) {
  return fmt::format("{}, {} bits, {}", format, bits,
                     group_size < 0 ? std::string("a scale per channel") : fmt::format("groups of {}", group_size));
}

quant::QuantizationScheme integer_scheme(int bits, std::int64_t group_size, std::int64_t columns, bool symmetric) {
  quant::QuantizationScheme scheme = quant::preset_scheme(symmetric ? "W4A16" : "W4A16_ASYM");
  scheme.targets = {"Linear"};
  scheme.format = "pack-quantized";
  scheme.weights->num_bits = bits;
  if (group_size < columns) {
    scheme.weights->group_size = group_size;
  } else {
    scheme.weights->strategy = quant::Strategy::kChannel;
    scheme.weights->group_size = std::nullopt;
  }
  return scheme;
}

}  // namespace layerpress::source
