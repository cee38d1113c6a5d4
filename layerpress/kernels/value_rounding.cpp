#include "layerpress/kernels/value_rounding.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <tuple>

#include "layerpress/kernels/cpu/table.h"
#include "layerpress/kernels/levels.h"
#include "layerpress/kernels/tensor_bits.h"

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
class RowRounding {
 public:
  RowRounding(const at::Tensor& x, const ValueRounding& rounding)
      : rounding_(rounding),
        features_(x.size(1)),
        rows_(std::max<std::int64_t>(1, kInCache / features_)),
        run_(rounding.run > 0 ? rounding.run : features_ / static_cast<std::int64_t>(rounding.given.size())),
        is_wide_(x.scalar_type() == at::kFloat),
        minima_(static_cast<std::size_t>(rows_ * features_ / run_)),
        maxima_(minima_.size()),
        scales_(minima_.size()),
        zero_points_(minima_.size()),
        wide_(is_wide_ ? 0 : static_cast<std::size_t>(rows_ * features_)) {
    for (std::size_t i = 0; rounding.run == 0 && i < scales_.size(); ++i) {
      scales_[i] = rounding.given[i % rounding.given.size()];
      zero_points_[i] = is_shifted(rounding) ? rounding.zero_points[i % rounding.zero_points.size()] : 0.0F;
    }
  }

  /// Rows [begin, end).
  void run(const at::Tensor& x, at::Tensor& y, std::int64_t begin, std::int64_t end) {
    for (std::int64_t first = begin; first < end; first += rows_) {
      const std::int64_t at = first * features_, count = std::min(rows_, end - first) * features_;
      cpu::RoundingTask task{.x = is_wide_ ? x.const_data_ptr<float>() + at : wide_.data(),
                             .runs = count / run_,
                             .run = run_,
                             .scales = scales_.data(),
                             .zero_points = zero_points_.data(),
                             .element = rounding_.rule.element};
      if (is_wide_) {
        task.type = cpu::ValueType::kFloat;
        task.y = y.data_ptr<float>() + at;
      } else {
        cpu::table().widen_bf16(bits(x) + at, wide_.data(), count);
        task.y = mutable_bits(y) + at;
      }
      if (rounding_.run > 0) find_scales(task);
      cpu::table().round_values(task);
    }
  }

 private:
  void find_scales(const cpu::RoundingTask& task) {
    cpu::table().run_ranges(task.x, task.runs, run_, minima_.data(), maxima_.data());
    for (std::size_t r = 0; r < static_cast<std::size_t>(task.runs); ++r) {
      const Qparams found = qparams_of(Range{minima_[r], maxima_[r]}, 1, rounding_.rule, rounding_.scales);
      scales_[r] = found.scale;
      zero_points_[r] = found.zero_point;
    }
  }

  const ValueRounding& rounding_;
  std::int64_t features_, rows_, run_;
  bool is_wide_;
  std::vector<float> minima_, maxima_, scales_, zero_points_, wide_;
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
                   [&](std::int64_t begin, std::int64_t end) { RowRounding(x, rounding).run(x, y, begin, end); });
  return y;
}

std::uint64_t rounding_workspace_bytes(std::int64_t rows, std::int64_t features) {
  const std::int64_t most = std::min(rows * features, std::max(kElements, features));
  return kCopies * sizeof(float) * static_cast<std::uint64_t>(most);
}

}  // namespace layerpress::kernels
