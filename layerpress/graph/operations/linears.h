#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Operations whose work is a weight matrix.

/// Row lookup: token ids -> [tokens, features].
struct Embedding {
  static constexpr const char* kKind = "embedding";
  std::string weight;  ///< [vocabulary, features]
  std::int64_t vocabulary = 0;
  std::int64_t features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("vocabulary", self.vocabulary), field("features", self.features);
  }
  WeightUses weights() const { return {{weight, {vocabulary, features}}}; }
  void check(const NodeCheck& node) const { node.expect(1, {0}), node.output(features); }
  std::vector<std::string> details(const std::string&) const { return {sizes_text(vocabulary, features)}; }
};

/// y = x Wᵀ + b.
struct Linear {
  static constexpr const char* kKind = "linear";
  std::string weight;  ///< [out_features, in_features]
  std::string bias;    ///< [out_features] or ""
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("weight", self.weight), field("bias", self.bias);
    field("in_features", self.in_features), field("out_features", self.out_features);
  }
  WeightUses weights() const {
    WeightUses uses{{weight, {out_features, in_features}}};
    if (!bias.empty()) uses.push_back({bias, {out_features}});
    return uses;
  }
  void check(const NodeCheck& node) const { node.expect(1, {in_features}), node.output(out_features); }
  std::vector<std::string> details(const std::string& module) const {
    std::vector<std::string> lines{sizes_text(in_features, out_features)};
    if (parent_name(weight) != module) lines.push_back("weight of " + parent_name(weight));
    return lines;
  }
  ScalePassage passage(std::size_t) const { return ScalePassage::kRead; }
};

using Linears = Family<Embedding, Linear>;

}  // namespace layerpress::graph
