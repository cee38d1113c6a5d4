#include "layerpress/kernels/value_rounding.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <tuple>

#include "layerpress/kernels/levels.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kElements = 1 << 20;  // limits the fp32 copies of a piece
constexpr std::uint64_t kCopies = 6;         // of a piece, in nearest_level and before it

at::Tensor rounded_piece(const at::Tensor& x, const ValueRounding& rounding) {
  const at::Tensor wide = x.to(at::kFloat);
  if (rounding.run == 0) {
    const auto column = [&](const std::vector<float>& numbers) {
      return at::tensor(numbers).to(wide.device()).view({1, -1, 1});
    };
    const at::Tensor scale = column(rounding.given);
    const bool shifted =
        std::any_of(rounding.zero_points.begin(), rounding.zero_points.end(), [](float z) { return z != 0; });
    const at::Tensor zero_point = shifted ? column(rounding.zero_points) : at::Tensor();
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

}  // namespace

at::Tensor rounded_values(const at::Tensor& x, const ValueRounding& rounding) {
  at::Tensor result = at::empty_like(x, at::MemoryFormat::Contiguous);
  const std::int64_t step = std::max<std::int64_t>(1, kElements / std::max<std::int64_t>(1, x.size(1)));
  for (std::int64_t first = 0; first < x.size(0); first += step) {
    const std::int64_t count = std::min(step, x.size(0) - first);
    result.narrow(0, first, count).copy_(rounded_piece(x.narrow(0, first, count), rounding));
  }
  return result;
}

std::uint64_t rounding_workspace_bytes(std::int64_t rows, std::int64_t features) {
  const std::int64_t most = std::min(rows * features, std::max(kElements, features));
  return kCopies * sizeof(float) * static_cast<std::uint64_t>(most);
}

}  // namespace layerpress::kernels
