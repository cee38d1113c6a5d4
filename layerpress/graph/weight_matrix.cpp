#include "layerpress/graph/weight_matrix.h"

namespace layerpress::graph {

std::optional<WeightMatrix> weight_matrix(const Operation& operation) {
  if (const auto* linear = std::get_if<Linear>(&operation))
    return WeightMatrix{linear->weight, linear->out_features, linear->in_features};
  if (const auto* embedding = std::get_if<Embedding>(&operation))
    return WeightMatrix{embedding->weight, embedding->vocabulary, embedding->features};
  return std::nullopt;
}

}  // namespace layerpress::graph
