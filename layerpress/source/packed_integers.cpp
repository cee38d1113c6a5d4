#include "layerpress/source/packed_integers.h"

#include <ATen/ATen.h>

#include "layerpress/base/error.h"
#include "layerpress/quant/pack.h"

namespace layerpress::source {

at::Tensor codes_packed_along_inputs(const at::Tensor& words, int bits) {
  return quant::unpack_int32(words.t(), bits, words.size(0) * 32 / bits);
}

at::Tensor codes_in_awq_order(const at::Tensor& words) {
  const std::int64_t inputs = words.size(0), outputs = words.size(1) * 8;
  static const at::Tensor places = at::tensor({0, 4, 1, 5, 2, 6, 3, 7}, at::kLong);  // where outputs 0, 1, ... are
  const at::Tensor stored = quant::unpack_int32(words, 4, outputs).view({inputs, words.size(1), 8});
  return stored.index_select(2, places).view({inputs, outputs}).t().contiguous();
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
