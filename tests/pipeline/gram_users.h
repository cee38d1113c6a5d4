#pragma once

#include <memory>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/compression/statistics/gram_statistic.h"

namespace layerpress::test {

inline std::vector<compression::StatisticPtr> gram_only() { return {std::make_shared<compression::GramStatistic>()}; }

/// What an algorithm costs that factorizes the Gram matrix, K³ / 3, and updates rows x K² by it.
inline compression::CompressionCost update_cost(const std::vector<compression::LinearShape>& linears) {
  const auto columns = static_cast<double>(linears.front().columns);
  double rows = 0;
  for (const compression::LinearShape& linear : linears) rows += static_cast<double>(linear.rows);
  compression::CompressionCost cost;
  cost.flops["solve"] = (rows + columns / 3) * columns * columns;
  return cost;
}

/// What travels of a Gram matrix.
inline double triangle_bytes(std::int64_t columns) { return static_cast<double>(columns * (columns + 1) / 2) * 4; }

}  // namespace layerpress::test
