#pragma once

#include <cstdint>
#include <string>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Normalizations of runs of features.

/// x / sqrt(mean(x²) + epsilon) * (weight_offset + weight) over `size` consecutive features (a whole row, or one head
/// of it).
struct RmsNorm {
  static constexpr const char* kKind = "rms_norm";
  std::string weight;  ///< [size]
  std::int64_t size = 0;
  double epsilon = 1e-6;
  double weight_offset = 0;   ///< not 0 only if rounded_once
  bool rounded_once = false;  ///< round to the dtype once, after the weight; otherwise also before it
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("size", self.size), field("epsilon", self.epsilon);
    field("weight_offset", self.weight_offset), field("rounded_once", self.rounded_once);
  }
  WeightUses weights() const { return {{weight, {size}}}; }
  void check(const NodeCheck& node) const {
    node.runs(size);
    node.require(rounded_once || weight_offset == 0, "an offset is added to the weight where it is rounded once");
    node.output(node.features(0));
  }
};

/// (x - mean(x)) / sqrt(variance(x) + epsilon) * weight + bias over `size` consecutive features.
struct LayerNorm {
  static constexpr const char* kKind = "layer_norm";
  std::string weight;  ///< [size]
  std::string bias;    ///< [size] or ""
  std::int64_t size = 0;
  double epsilon = 1e-5;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("bias", self.bias), field("size", self.size), field("epsilon", self.epsilon);
  }
  WeightUses weights() const {
    WeightUses uses{{weight, {size}}};
    if (!bias.empty()) uses.push_back({bias, {size}});
    return uses;
  }
  void check(const NodeCheck& node) const { node.runs(size), node.output(node.features(0)); }
};

using Norms = Family<RmsNorm, LayerNorm>;

}  // namespace layerpress::graph
