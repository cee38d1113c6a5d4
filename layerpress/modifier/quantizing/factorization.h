#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>

#include "layerpress/base/system/phase_times.h"
#include "layerpress/kernels/solver/factorize.h"

namespace layerpress::modifier {

/// The order in which a weight's columns are quantized. Weights with the same order share a factorization.
struct ColumnOrder {
  bool by_activation = true;
  std::int64_t group_columns = 0;  ///< size of groups that stay together; 0: no groups

  auto operator<=>(const ColumnOrder&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 is wrong
};

kernels::FactorizeOptions factorize_options(const ColumnOrder& order, double dampening);

/// Why inputs with this sum of the Gram matrix's diagonal contain no information about a weight, such as "non-finite inputs"; "" if
/// they do.
std::string useless_inputs(double diagonal_sum);

/// A factorization and the fallback that produced it.
struct Factorization {
  std::optional<kernels::HessianFactor> factor;
  std::string fallback;  ///< "" when the first attempt worked
};

/// Retries with dampening x10 up to three times, then the same in double precision. `otherwise`: what is done without a factor.
/// Measured as "factorize".
Factorization factorize_with_fallbacks(const at::Tensor& gram, double dampening, const ColumnOrder& order,
                                       PhaseTimes& times, const char* otherwise = "round-to-nearest");

/// Of a matrix with so many columns, by the first attempt.
double factorize_flops(std::int64_t columns);

}  // namespace layerpress::modifier
