#include "layerpress/graph/operations.h"

namespace layerpress::graph {

const char* kind_name(const Operation& operation) {
  return std::visit([](const auto& op) { return op.kKind; }, operation);
}

namespace {

struct WeightsOf {
  using Uses = std::vector<WeightUse>;
  Uses operator()(const Embedding& op) const { return {{op.weight, {op.vocabulary, op.features}}}; }
  Uses operator()(const Linear& op) const {
    Uses uses{{op.weight, {op.out_features, op.in_features}}};
    if (!op.bias.empty()) uses.push_back({op.bias, {op.out_features}});
    return uses;
  }
  Uses operator()(const RmsNorm& op) const { return {{op.weight, {op.size}}}; }
  template <typename Weightless>
  Uses operator()(const Weightless&) const {
    return {};
  }
};

}  // namespace

std::vector<WeightUse> weights_of(const Operation& operation) { return std::visit(WeightsOf{}, operation); }

}  // namespace layerpress::graph
