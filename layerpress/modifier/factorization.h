#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "layerpress/kernels/factorize.h"

namespace layerpress::modifier {

/// In which order a weight's columns are quantized; weights that agree share a factorization.
struct ColumnOrder {
  bool by_activation = true;
  std::int64_t group_columns = 0;  ///< of groups that stay together; 0: none do

  auto operator<=>(const ColumnOrder&) const = default;
};

kernels::FactorizeOptions factorize_options(const ColumnOrder& order, double dampening);

/// Why inputs with such a sum of the Gram matrix's diagonal say nothing about a weight; "" if they do.
std::string useless_inputs(double diagonal_sum);

/// A factorization and how it came about.
struct Factorization {
  std::optional<kernels::HessianFactor> factor;
  std::string fallback;  ///< "" when the first attempt worked
};

/// Tries with dampening x10 up to three times, then the same in double precision.
Factorization factorize_with_fallbacks(const at::Tensor& gram, double dampening, const ColumnOrder& order);

}  // namespace layerpress::modifier
