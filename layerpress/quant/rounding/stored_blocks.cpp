#include "layerpress/quant/rounding/stored_blocks.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cmath>

#include "layerpress/gguf/blocks/grid_type.h"
#include "layerpress/kernels/tasks.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

/// The type if it has one scale for all consecutive integers of a block.
const gguf::GridType* integer_type(const gguf::BlockType& type) {
  const auto* grid = dynamic_cast<const gguf::GridType*>(&type);
  const bool fits = grid != nullptr && grid->shape().levels == nullptr && grid->shape().groups() == 1;
  return fits ? grid : nullptr;
}

/// The type if it holds FP4 with the scales that the arguments have.
const gguf::GridType* fp4_type(const gguf::BlockType& type, const QuantizationArgs& args) {
  const bool fits = args.is_float(4) && ((type.name() == "MXFP4" && has_power_scales(args)) ||
                                         (type.name() == "NVFP4" && has_global_scale(args)));
  const auto* grid = fits ? dynamic_cast<const gguf::GridType*>(&type) : nullptr;
  return grid != nullptr && grid->shape().group == args.group_size ? grid : nullptr;
}

/// Scales of all groups of a block, then for each group codes in bytes: of its first half the low, of its second half the high bits.
/// Nothing if a scale is negative or no number, which ggml's have no form for.
std::optional<at::Tensor> fp4_blocks(const gguf::GridType& type, const QuantizedWeight& weight) {
  const std::int64_t rows = weight.codes.size(0), groups = type.shape().groups();
  const at::Tensor scales = weight.scale.contiguous().view(at::kByte).view({rows, -1, groups});
  const int greatest = type.name() == "NVFP4" ? 0x7E : 0xFE;
  if (scales.numel() > 0 && scales.max().item<int>() > greatest) return std::nullopt;
  const at::Tensor halves = weight.codes.contiguous().view({rows, -1, groups, 2, type.shape().group / 2});
  const at::Tensor bytes = halves.select(3, 0).bitwise_or(halves.select(3, 1).bitwise_left_shift(4));
  return at::cat({scales, bytes.flatten(2)}, 2).view({rows, -1});
}

/// Whether a number survives in float16, but for its last bits.
bool fits_half(float value) {
  const auto half = static_cast<float>(static_cast<c10::Half>(value));
  return std::isfinite(half) && std::fabs(half - value) <= std::fabs(value) / 1024;
}

/// Groups of a weight, each of some blocks.
struct Groups {
  at::Tensor scales, zero_points;  // fp32 [rows, groups]
  std::int64_t columns = 0;        // of a group
};

Groups groups_of(const QuantizedWeight& weight) {
  const std::int64_t rows = weight.codes.size(0);
  Groups groups;
  groups.scales = weight.scale.to(at::kFloat).view({weight.scale.size(0), -1}).expand({rows, -1}).contiguous();
  groups.zero_points = at::zeros_like(groups.scales);
  if (weight.zero_point.defined()) groups.zero_points.copy_(weight.zero_point.view({weight.zero_point.size(0), -1}));
  groups.columns = weight.codes.size(1) / groups.scales.size(1);
  return groups;
}

class Blocks {
 public:
  Blocks(const gguf::GridType& type, const QuantizationScheme& stored, const QuantizedWeight& weight)
      : type_(type),
        offset_(type.shape().has_minimums ? 1 << (stored.weights->num_bits - 1) : -type.shape().lowest),
        codes_(weight.codes.to(at::kInt).contiguous()),
        groups_(groups_of(weight)) {}

  std::optional<at::Tensor> make() {
    const std::int64_t rows = codes_.size(0), columns = codes_.size(1), bytes = type_.row_bytes(columns);
    at::Tensor blocks = at::empty({rows, bytes}, at::kByte);
    std::atomic<bool> exact = true;
    kernels::for_each_task(rows, [&](std::int64_t row) {
      if (!make_row(row, columns, blocks.data_ptr<std::uint8_t>() + row * bytes)) exact = false;
    });
    return exact ? std::optional(blocks) : std::nullopt;
  }

 private:
  bool make_row(std::int64_t row, std::int64_t columns, std::uint8_t* blocks) const {
    const int* codes = codes_.const_data_ptr<int>() + row * columns;
    const std::int64_t groups = groups_.scales.size(1);
    const float* scales = groups_.scales.const_data_ptr<float>() + row * groups;
    const float* zeros = groups_.zero_points.const_data_ptr<float>() + row * groups;
    for (std::int64_t first = 0; first < columns; first += type_.block_values(), blocks += type_.block_bytes()) {
      const std::int64_t group = first / groups_.columns;
      const float minimum =
          type_.shape().has_minimums ? scales[group] * (zeros[group] + static_cast<float>(offset_)) : 0.0F;
      if (!fits_half(scales[group]) || !fits_half(minimum)) return false;
      gguf::BlockContents contents;
      contents.scale = scales[group];
      contents.minimum = minimum;
      contents.group_scales[0] = 1;
      contents.group_minimums[0] = 1;
      for (std::int64_t j = 0; j < type_.block_values(); ++j)
        contents.codes[static_cast<std::size_t>(j)] = static_cast<std::uint8_t>(codes[first + j] + offset_);
      type_.pack(contents, blocks);
    }
    return true;
  }

  const gguf::GridType& type_;
  const int offset_;  // what a code of the scheme has more in a block
  const at::Tensor codes_;
  const Groups groups_;
};

}  // namespace

bool holds_values(const QuantizationScheme& scheme, const QuantizationScheme& stored, std::int64_t columns) {
  const gguf::BlockType& type = *block_type(scheme);
  if (!stored.weights || columns % type.block_values() != 0) return false;
  if (fp4_type(type, *stored.weights) != nullptr) return scheme.scaled_blocks == has_global_scale(*stored.weights);
  const gguf::GridType* grid = integer_type(type);
  if (grid == nullptr) return false;
  const QuantizationArgs& args = *stored.weights;
  const std::int64_t group = args.strategy == Strategy::kGroup ? args.group_size.value_or(0) : columns;
  const bool in_rows =
      args.strategy == Strategy::kGroup || args.strategy == Strategy::kChannel || args.strategy == Strategy::kTensor;
  if (args.type != NumberType::kInt || !in_rows || group <= 0 || columns % group != 0 ||
      group % type.block_values() != 0)
    return false;
  const gguf::GridShape& shape = grid->shape();
  if (shape.has_minimums == args.symmetric) return false;
  if (shape.has_minimums) return shape.codes >= 1 << args.num_bits;
  return shape.lowest <= -(1 << (args.num_bits - 1)) && shape.lowest + shape.codes >= 1 << (args.num_bits - 1);
}

std::optional<at::Tensor> blocks_of(const gguf::BlockType& type, const QuantizationScheme& stored,
                                    const QuantizedWeight& weight) {
  if (const gguf::GridType* grid = fp4_type(type, *stored.weights)) return fp4_blocks(*grid, weight);
  return Blocks(*integer_type(type), stored, weight).make();
}

}  // namespace layerpress::quant
