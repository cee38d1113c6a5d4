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
  Uses operator()(const LayerNorm& op) const {
    Uses uses{{op.weight, {op.size}}};
    if (!op.bias.empty()) uses.push_back({op.bias, {op.size}});
    return uses;
  }
  Uses operator()(const Route& op) const { return op.bias.empty() ? Uses() : Uses{{op.bias, {op.experts}}}; }
  Uses operator()(const Expert& op) const { return {{op.down, {op.features, op.intermediate}}}; }
  Uses operator()(const PatchEmbedding& op) const {
    return {{op.weight, {op.features, op.channels, op.patch_size, op.patch_size}}};
  }
  Uses operator()(const TileEmbedding& op) const {
    return {{op.table, {op.aspect_ratios + 1, op.tiles * op.features}}, {op.gate, {1}}};
  }
  Uses operator()(const ClassEmbedding& op) const { return {{op.weight, {op.features}}}; }
  Uses operator()(const PatchPosition& op) const {
    return {{op.embedding, {op.patches, op.features}},
            {op.table, {op.aspect_ratios + 1, op.tiles * op.patches * op.features}},
            {op.gate, {1}}};
  }
  Uses operator()(const GatedAdd& op) const { return {{op.gate, {1}}}; }
  template <typename Weightless>
  Uses operator()(const Weightless&) const {
    return {};
  }
};

}  // namespace

std::vector<WeightUse> weights_of(const Operation& operation) { return std::visit(WeightsOf{}, operation); }

}  // namespace layerpress::graph
