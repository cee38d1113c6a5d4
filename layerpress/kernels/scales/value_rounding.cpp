#include "layerpress/kernels/scales/value_rounding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/products/tensor_bits.h"
#include "layerpress/kernels/scales/levels.h"
#include "layerpress/kernels/scales/run_rounding.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kElements = 1 << 20;  // limits the fp32 copies of a piece of plain_rounded_values
constexpr std::uint64_t kCopies = 6;         // of a piece, in nearest_level and before it
constexpr std::int64_t kInCache = 4096;      // elements that a thread widens at once, but at least a row

bool is_shifted(const ValueRounding& rounding) {
  return std::any_of(rounding.zero_points.begin(), rounding.zero_points.end(), [](float z) { return z != 0; });
}

at::Tensor rounded_piece(const at::Tensor& x, const ValueRounding& rounding) {
  const at::Tensor wide = x.to(at::kFloat);
  if (rounding.run == 0) {
    const auto column = [&](const std::vector<float>& numbers) {
      return at::tensor(numbers).to(wide.device()).view({1, -1, 1});
    };
    const at::Tensor scale = column(rounding.given);
    const at::Tensor zero_point = is_shifted(rounding) ? column(rounding.zero_points) : at::Tensor();
    const at::Tensor runs = wide.reshape({x.size(0), scale.size(1), -1});
    return level_value(nearest_level(runs, scale, zero_point, rounding.rule.element), scale, zero_point)
        .view(x.sizes());
  }
  const at::Tensor runs = wide.reshape({-1, rounding.run});
  const auto [minimum, maximum] = at::aminmax(runs, 1, true);
  const ChosenScales chosen = qparams_of(minimum.clamp_max(0), maximum.clamp_min(0), 1, rounding.rule, rounding.scales);
  const at::Tensor level = nearest_level(runs, chosen.scale, chosen.zero_point, rounding.rule.element);
  return level_value(level, chosen.scale, chosen.zero_point).view(x.sizes());
}

/// Some rows after the other, in cache, by one thread.
class RowsInCache {
 public:
  RowsInCache(const at::Tensor& x, const ValueRounding& rounding)
      : rounding_(rounding),
        features_(x.size(1)),
        rows_(std::max<std::int64_t>(1, kInCache / features_)),
        run_(rounding.run > 0 ? rounding.run : features_ / static_cast<std::int64_t>(rounding.given.size())),
        is_wide_(x.scalar_type() == at::kFloat),
        found_(rounding.rule, rounding.scales, static_cast<std::size_t>(rows_ * features_ / run_)),
        wide_(is_wide_ ? 0 : static_cast<std::size_t>(rows_ * features_)) {
    if (rounding.run > 0) return;
    for (std::int64_t r = 0; r < rows_; ++r) {
      scales_.insert(scales_.end(), rounding.given.begin(), rounding.given.end());
      if (is_shifted(rounding)) {
        const std::vector<float>& shifts = rounding.zero_points;
        for (std::size_t i = 0; i < rounding.given.size(); ++i) zero_points_.push_back(shifts[i % shifts.size()]);
      }
    }
  }

  /// Rows [begin, end).
  void round(const at::Tensor& x, at::Tensor& y, std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += rows_) {
      const std::int64_t at = first * features_, count = std::min(rows_, end - first) * features_;
      if (is_wide_) {
        round(x.const_data_ptr<float>() + at, count, cpu::ValueType::kFloat, y.data_ptr<float>() + at);
      } else {
        cpu::table().widen_bf16(bits(x) + at, wide_.data(), count);
        round(wide_.data(), count, cpu::ValueType::kBFloat16, mutable_bits(y) + at);
      }
    }
  }

 private:
  void round(const float* x, std::int64_t count, cpu::ValueType type, void* y) {
    if (rounding_.run > 0) return found_.round(x, count / run_, run_, type, y);
    cpu::table().round_values({.x = x,
                               .runs = count / run_,
                               .run = run_,
                               .scales = scales_.data(),
                               .zero_points = zero_points_.empty() ? nullptr : zero_points_.data(),
                               .element = rounding_.rule.element,
                               .type = type,
                               .y = y});
  }

  const ValueRounding& rounding_;
  std::int64_t features_, rows_, run_;
  bool is_wide_;
  RunRounding found_;
  std::vector<float> scales_, zero_points_, wide_;
};

}  // namespace

at::Tensor plain_rounded_values(const at::Tensor& x, const ValueRounding& rounding) {
  at::Tensor result = at::empty_like(x, at::MemoryFormat::Contiguous);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, x.size(1)));
  for (std::int64_t first = 0; first < x.size(0); first += step) {
    const std::int64_t count = std::min(step, x.size(0) - first);
    result.narrow(0, first, count).copy_(rounded_piece(x.narrow(0, first, count), rounding));
  }
  return result;
}

at::Tensor rounded_values(const at::Tensor& input, const ValueRounding& rounding) {
  const bool is_fused = input.is_cpu() && (input.scalar_type() == at::kBFloat16 || input.scalar_type() == at::kFloat);
  if (!is_fused || input.numel() == 0) return plain_rounded_values(input, rounding);
  const at::Tensor x = input.contiguous();
  at::Tensor y = at::empty_like(x);
  const std::int64_t grain = std::max<std::int64_t>(1, 65536 / x.size(1));
  at::parallel_for(0, x.size(0), grain,
                   [&](std::int64_t begin, std::int64_t end) { RowsInCache(x, rounding).round(x, y, begin, end); });
  return y;
}

std::uint64_t rounding_workspace_bytes(std::int64_t rows, std::int64_t features) {
  const std::int64_t most = std::min(rows * features, std::max(kElements, features));
  return kCopies * sizeof(float) * static_cast<std::uint64_t>(most);
}

}  // namespace layerpress::kernels
