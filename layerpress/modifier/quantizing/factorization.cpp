#include "layerpress/modifier/quantizing/factorization.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace layerpress::modifier {

kernels::FactorizeOptions factorize_options(const ColumnOrder& order, double dampening) {
  return {.dampening = dampening, .activation_order = order.by_activation, .group_columns = order.group_columns};
}

std::string useless_inputs(double diagonal_sum) {
  // An all-zero or non-finite matrix contains no information about the inputs, and dampening does not help.
  if (!std::isfinite(diagonal_sum)) return "non-finite inputs";
  return diagonal_sum == 0 ? "no tokens, or nothing but zeros" : "";
}

Factorization factorize_with_fallbacks(const at::Tensor& gram, double dampening, const ColumnOrder& order,
                                       PhaseTimes& times, const char* otherwise) {
  const auto phase = times.measure("factorize");
  times.add_flops("factorize", factorize_flops(gram.size(0)));
  if (const std::string useless = useless_inputs(gram.diagonal().sum().item<double>()); !useless.empty())
    return {std::nullopt, fmt::format("{} ({})", otherwise, useless)};
  for (const bool wide : {false, true}) {
    double damp = dampening;
    for (int attempt = 0; attempt<4; ++attempt, damp = damp> 0 ? damp * 10 : 0.01) {
      const bool first = !wide && attempt == 0;
      kernels::FactorizeOptions options = factorize_options(order, damp);
      options.double_precision = wide;
      if (auto factor = kernels::factorize(gram, options))
        return {std::move(factor),
                first ? "" : fmt::format("dampening {:g}{}", damp, wide ? ", double precision" : "")};
    }
  }
  return {std::nullopt, fmt::format("{} (factorization failed)", otherwise)};
}

double factorize_flops(std::int64_t columns) {
  const auto size = static_cast<double>(columns);
  return size * size * size / 3;
}

}  // namespace layerpress::modifier
