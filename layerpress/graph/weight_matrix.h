#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "layerpress/graph/operations.h"

namespace layerpress::graph {

/// The weight [rows, columns] of a linear or an embedding. Only these can be compressed.
struct WeightMatrix {
  std::string weight;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
};

/// Nothing for other operations.
std::optional<WeightMatrix> weight_matrix(const Operation& operation);

inline bool is_linear(const Operation& operation) { return std::holds_alternative<Linear>(operation); }
inline bool is_embedding(const Operation& operation) { return std::holds_alternative<Embedding>(operation); }

}  // namespace layerpress::graph
