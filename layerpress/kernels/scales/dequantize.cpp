#include "layerpress/kernels/scales/dequantize.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/relative_error.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kElementsAtOnce = 1 << 14;  // per thread: they stay in the L1 cache

/// Dequantizes rows; used by one thread.
class RowDequantizer {
 public:
  RowDequantizer(const at::Tensor& codes, const ScaleGrid& grid, const ElementType& element, const ChosenScales& scales)
      : grid_(grid),
        element_(element),
        columns_(codes.size(1)),
        groups_(scales.scale.size(1)),
        codes_(static_cast<const std::int8_t*>(codes.const_data_ptr())),
        scale_(scales.scale.const_data_ptr<float>()),
        zero_point_(scales.zero_point.defined() ? scales.zero_point.const_data_ptr<float>() : nullptr) {}

  /// Writes rows [first, first + rows) to `target`, contiguous and of `dtype`.
  void run(std::int64_t first, std::int64_t rows, at::ScalarType dtype, void* target) {
    for (std::int64_t r = 0; r < rows; ++r) {
      if (dtype == at::kBFloat16) {
        row(first + r, cpu::table().dequantize_bf16, static_cast<cpu::Bits16*>(target) + r * columns_);
      } else if (dtype == at::kFloat) {
        row(first + r, cpu::table().dequantize_f32, static_cast<float*>(target) + r * columns_);
      } else {
        wide_.resize(static_cast<std::size_t>(columns_));
        row(first + r, cpu::table().dequantize_f32, wide_.data());
        std::transform(wide_.begin(), wide_.end(), static_cast<at::Half*>(target) + r * columns_,
                       [](float value) { return at::Half(value); });
      }
    }
  }

 private:
  template <typename Kernel, typename Value>
  void row(std::int64_t row, Kernel kernel, Value* target) const {
    const std::int64_t first = row / grid_.block_rows * groups_;
    kernel(codes_ + row * columns_,
           {columns_, grid_.block_columns, scale_ + first, zero_point_ == nullptr ? nullptr : zero_point_ + first},
           element_, target);
  }

  ScaleGrid grid_;
  ElementType element_;
  std::int64_t columns_, groups_;
  const std::int8_t* codes_;
  const float* scale_;
  const float* zero_point_;
  std::vector<float> wide_;
};

void require_contiguous(const at::Tensor& codes, const ChosenScales& scales) {
  if (!codes.is_cpu() || !codes.is_contiguous() || !scales.scale.is_contiguous() ||
      (scales.zero_point.defined() && !scales.zero_point.is_contiguous()))
    throw InternalError("[kernels.dequantize] codes and scales must be contiguous, on the CPU");
}

}  // namespace

at::Tensor dequantize(const at::Tensor& codes, const ScaleGrid& grid, const ElementType& element,
                      const ChosenScales& scales, at::ScalarType dtype) {
  require_contiguous(codes, scales);
  at::Tensor values = at::empty(codes.sizes(), dtype);
  const std::int64_t columns = codes.size(1), row_bytes = columns * static_cast<std::int64_t>(values.element_size());
  auto* target = static_cast<std::uint8_t*>(values.mutable_data_ptr());
  const std::int64_t grain = std::max<std::int64_t>(1, kElementsAtOnce / columns);
  at::parallel_for(0, codes.size(0), grain, [&](std::int64_t begin, std::int64_t end) {
    RowDequantizer(codes, grid, element, scales).run(begin, end - begin, dtype, target + begin * row_bytes);
  });
  return values;
}

double quantization_error(const at::Tensor& input, const at::Tensor& codes, const ScaleGrid& grid,
                          const ElementType& element, const ChosenScales& scales) {
  require_contiguous(codes, scales);
  const at::Tensor weight = input.contiguous();
  const std::int64_t columns = codes.size(1), rows_at_once = std::max<std::int64_t>(1, kElementsAtOnce / columns);
  const std::int64_t rows = codes.size(0), chunks = (rows + rows_at_once - 1) / rows_at_once;
  const std::int64_t row_bytes = columns * static_cast<std::int64_t>(weight.element_size());
  const auto* source = static_cast<const std::uint8_t*>(weight.const_data_ptr());
  // Fixed chunks, summed in order: the result does not depend on the thread count.
  std::vector<SquareSums> sums(static_cast<std::size_t>(chunks));
  at::parallel_for(0, chunks, 1, [&](std::int64_t begin, std::int64_t end) {
    RowDequantizer dequantizer(codes, grid, element, scales);
    std::vector<std::uint8_t> values(static_cast<std::size_t>(rows_at_once * row_bytes));
    for (std::int64_t c = begin; c < end; ++c) {
      const std::int64_t first = c * rows_at_once, count = std::min(rows_at_once, rows - first);
      dequantizer.run(first, count, weight.scalar_type(), values.data());
      sums[static_cast<std::size_t>(c)] =
          square_sums(source + first * row_bytes, values.data(), weight.scalar_type(), count * columns);
    }
  });
  return relative_error(sums);
}

}  // namespace layerpress::kernels
