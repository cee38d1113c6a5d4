#include "layerpress/graph/operations.h"

namespace layerpress::graph {

const char* kind_name(const Operation& operation) {
  return std::visit([](const auto& kind) { return kind.kKind; }, operation);
}

WeightUses weights_of(const Operation& operation) {
  const auto weights = [](const auto& kind) -> WeightUses {
    if constexpr (requires { kind.weights(); }) return kind.weights();
    return {};
  };
  return std::visit(weights, operation);
}

}  // namespace layerpress::graph
