#include "layerpress/kernels/scales/dequantize.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "layerpress/base/error.h"
#include "layerpress/gguf/blocks/block_rows.h"
#include "layerpress/kernels/products/relative_error.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/rounding/observer.h"
#include "layerpress/quant/weight_numbers.h"

namespace layerpress::quant {
namespace {

const QuantizationArgs& coded_weights(const QuantizationScheme& scheme) {
  if (!scheme.weights) throw InternalError("[quant.dequantize] a scheme without weights has no codes");
  return *scheme.weights;
}

/// Scales and zero points in fp32 as matrices over blocks.
kernels::ChosenScales scales_of(const QuantizedWeight& weight) {
  const auto as_matrix = [](const at::Tensor& t) {
    return (t.dim() == 1 ? t.view({1, 1}) : t).to(at::kFloat).contiguous();
  };
  return {as_matrix(wide_scales(weight.scale, weight.global_scale)),
          weight.zero_point.defined() ? as_matrix(weight.zero_point) : at::Tensor()};
}

at::Tensor code_bytes(const QuantizedWeight& weight) { return weight.codes.contiguous().view(at::kChar); }

constexpr std::int64_t kElementsAtOnce = 1 << 22;         // enough to fill a GPU
constexpr std::int64_t kDecodedElementsAtOnce = 1 << 18;  // on the CPU; plans do not count so little

/// With ATen operations, some rows at a time. Rows that are processed together stay inside one row of blocks, so that
/// they have either one row of scales each or one in common.
at::Tensor dequantize_on_device(const QuantizationArgs& args, const QuantizedWeight& weight,
                                const kernels::ScaleGrid& grid, at::ScalarType dtype) {
  const std::int64_t rows = weight.codes.size(0), columns = weight.codes.size(1);
  const kernels::ChosenScales scales = scales_of(weight);
  at::Tensor result = at::empty({rows, columns}, weight.codes.options().dtype(dtype));
  const std::int64_t step = std::max<std::int64_t>(1, kElementsAtOnce / columns);
  for (std::int64_t first = 0, count = 0; first < rows; first += count) {
    const std::int64_t limit =
        grid.block_rows == 1 ? rows : std::min(rows, (first / grid.block_rows + 1) * grid.block_rows);
    count = std::min(step, limit - first);
    const auto per_column = [&](const at::Tensor& blocks) {
      const at::Tensor own =
          grid.block_rows == 1 ? blocks.narrow(0, first, count) : blocks.narrow(0, first / grid.block_rows, 1);
      return own.repeat_interleave(grid.block_columns, 1).narrow(1, 0, columns);
    };
    at::Tensor values = kernels::code_levels(weight.codes.narrow(0, first, count).view(at::kChar), element_of(args));
    if (scales.zero_point.defined()) values.sub_(per_column(scales.zero_point));
    result.narrow(0, first, count).copy_(values.mul_(per_column(scales.scale)));
  }
  return result;
}

std::int64_t columns_of(const gguf::BlockType& type, const QuantizedWeight& weight) {
  return weight.codes.size(1) / type.block_bytes() * type.block_values();
}

/// Calls use(first row, fp32 values) for some rows of a weight in blocks at a time.
template <typename Function>
void for_decoded_rows(const gguf::BlockType& type, const QuantizedWeight& weight, Function&& use) {
  const std::int64_t rows = weight.codes.size(0), columns = columns_of(type, weight);
  const at::Tensor blocks = weight.codes.to(at::kCPU).contiguous();
  const std::int64_t step = std::max<std::int64_t>(1, kDecodedElementsAtOnce / std::max<std::int64_t>(1, columns));
  for (std::int64_t first = 0; first < rows; first += step) {
    at::Tensor values = gguf::decode_rows(type, blocks.narrow(0, first, std::min(step, rows - first)), columns);
    if (weight.global_scale.defined()) values.mul_(weight.global_scale.to(at::kCPU));
    use(first, values);
  }
}

at::Tensor decoded(const gguf::BlockType& type, const QuantizedWeight& weight, at::ScalarType dtype) {
  at::Tensor result = at::empty({weight.codes.size(0), columns_of(type, weight)}, weight.codes.options().dtype(dtype));
  for_decoded_rows(type, weight, [&](std::int64_t first, const at::Tensor& values) {
    result.narrow(0, first, values.size(0)).copy_(values);
  });
  return result;
}

double error_of_blocks(const gguf::BlockType& type, const at::Tensor& original, const QuantizedWeight& weight) {
  std::vector<kernels::SquareSums> sums;
  for_decoded_rows(type, weight, [&](std::int64_t first, const at::Tensor& values) {
    const at::Tensor rows = original.narrow(0, first, values.size(0)).to(at::kCPU, at::kFloat).contiguous();
    sums.push_back(kernels::square_sums(rows.const_data_ptr(), values.const_data_ptr(), at::kFloat, rows.numel()));
  });
  return kernels::relative_error(sums);
}

}  // namespace

at::Tensor dequantize(const QuantizationScheme& scheme, const QuantizedWeight& weight, at::ScalarType dtype) {
  if (const gguf::BlockType* type = block_type(scheme)) return decoded(*type, weight, dtype);
  if (is_dense(scheme)) return weight.codes.to(dtype);
  const QuantizationArgs& args = coded_weights(scheme);
  const std::int64_t rows = weight.codes.size(0), columns = weight.codes.size(1);
  if (weight.codes.numel() == 0) return at::empty({rows, columns}, weight.codes.options().dtype(dtype));
  const kernels::ScaleGrid grid = scale_grid(args, rows, columns);
  if (!weight.codes.is_cpu()) return dequantize_on_device(args, weight, grid, dtype);
  const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
  const at::Tensor values =
      kernels::dequantize(code_bytes(weight), grid, element_of(args), scales_of(weight), narrow ? dtype : at::kFloat);
  return values.to(dtype);
}

std::uint64_t dequantize_workspace(std::int64_t rows, std::int64_t columns, at::Device device) {
  constexpr std::uint64_t kBytes = 12;  // values and scales, or places in a table and values
  if (device.is_cpu()) return 0;
  return kBytes * static_cast<std::uint64_t>(std::min(rows * columns, std::max(columns, kElementsAtOnce)));
}

double relative_error(const QuantizationScheme& scheme, const at::Tensor& original, const QuantizedWeight& weight) {
  if (const gguf::BlockType* type = block_type(scheme)) return error_of_blocks(*type, original, weight);
  if (is_dense(scheme)) return kernels::relative_error(original, weight.codes);
  const QuantizationArgs& args = coded_weights(scheme);
  const at::ScalarType dtype = original.scalar_type();
  const bool fused = original.is_cpu() && (dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat);
  if (!fused || original.numel() == 0)
    return kernels::relative_error(original, dequantize(scheme, weight, original.scalar_type()));
  return kernels::quantization_error(original, code_bytes(weight), scale_grid(args, original.size(0), original.size(1)),
                                     element_of(args), scales_of(weight));
}

}  // namespace layerpress::quant
