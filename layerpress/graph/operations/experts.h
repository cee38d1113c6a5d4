#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Mixtures of experts. A router's linear computes logits [tokens, experts]. Then:
//
//   routing = route(logits)                                  weights of the chosen experts, 0 for the others
//   for every expert e:
//     x_e = select_tokens(x, logits, routing)                the tokens that it is calibrated on
//     h_e = gated_activation(gate(x_e), up(x_e))
//     down(h_e)                                              a linear like any other; no node reads its output
//     r_e = take_routed(h_e, logits, routing)                the rows of the tokens routed to it
//     y = expert(r_e, routing, y of the experts before)      adds its contribution to the layer's output
//
// So every linear of every expert is a node with a name, an input and statistics, like any other linear, and is
// computed on all tokens that it is calibrated on. The layer's output needs only the chosen experts. If only the output
// is needed, rows are taken before gate and up instead of after them.

/// Logits [tokens, experts] -> the weight of each expert's output, 0 for experts not chosen.
struct Route {
  static constexpr const char* kKind = "route";
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::string scores =
      "softmax";            ///< of the logits: "softmax", "sigmoid", or "chosen_softmax" (over the chosen experts only)
  bool normalize = false;   ///< scale the chosen weights of a token to a sum of 1
  double scale = 1;         ///< final factor of all weights
  std::string bias;         ///< [experts], added to scores to choose experts, but not to weights; or ""
  std::int64_t groups = 1;  ///< experts are chosen only from the best `top_groups` of these groups
  std::int64_t top_groups = 1;
  std::string group_score = "max";  ///< score of a group: its best expert ("max") or the sum of its best two ("top2")
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("experts", self.experts), field("top_k", self.top_k), field("scores", self.scores);
    field("normalize", self.normalize), field("scale", self.scale), field("bias", self.bias);
    field("groups", self.groups), field("top_groups", self.top_groups), field("group_score", self.group_score);
  }
  WeightUses weights() const { return bias.empty() ? WeightUses() : WeightUses{{bias, {experts}}}; }
  void check(const NodeCheck& node) const {
    node.expect(1, {experts});
    node.require(top_k > 0 && top_k <= experts, "as many experts as are chosen");
    node.require(groups > 0 && experts % groups == 0 && top_groups > 0 && top_groups <= groups, "groups of experts");
    node.output(experts);
  }
  std::vector<std::string> details(const std::string&) const {
    return {std::to_string(top_k) + " of " + std::to_string(experts) + " experts"};
  }
};

/// Rows of one expert, chosen among those of the first of three inputs: the value, logits, routing.
struct ExpertRows {
  std::int64_t expert = 0;
  std::int64_t experts = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("expert", self.expert), field("experts", self.experts);
  }
  void check(const NodeCheck& node) const {
    node.expect(3, {node.features(0), experts, experts});
    node.require(expert >= 0 && expert < experts, "the expert exists");
    node.output(node.features(0), Rows::kSelected);
  }
  ScalePassage passage(std::size_t input) const { return passes_only(0, input); }
  bool keeps_rows(std::size_t input) const { return input == 0; }
};

/// The rows of x that an expert is calibrated on: the rows routed to it and, if these are too few, those with the
/// highest scores for it. Inputs: x, logits, routing.
struct SelectTokens : ExpertRows {
  static constexpr const char* kKind = "select_tokens";
  std::vector<std::string> details(const std::string&) const { return {"to calibrate on"}; }
};

/// The rows of an expert's value that are routed to the expert. Inputs: the value, whose rows are all tokens or those
/// of SelectTokens; logits; routing.
struct TakeRouted : ExpertRows {
  static constexpr const char* kKind = "take_routed";
  std::vector<std::string> details(const std::string&) const { return {"rows of its tokens"}; }
};

/// sum + routing[:, expert] * down(r), computed on the rows routed to the expert, which are the rows of r. Inputs: r,
/// routing, and the sum over the experts before, if there is one.
struct Expert {
  static constexpr const char* kKind = "expert";
  std::int64_t expert = 0;
  std::int64_t experts = 0;
  std::int64_t features = 0;
  std::int64_t intermediate = 0;
  std::string down;       ///< weight [features, intermediate]
  std::string down_bias;  ///< [features], or ""
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("expert", self.expert), field("experts", self.experts), field("features", self.features);
    field("intermediate", self.intermediate), field("down", self.down), field("down_bias", self.down_bias);
  }
  WeightUses weights() const {
    WeightUses uses{{down, {features, intermediate}}};
    if (!down_bias.empty()) uses.push_back({down_bias, {features}});
    return uses;
  }
  void check(const NodeCheck& node) const;
  std::vector<std::string> details(const std::string&) const { return {"on its routed tokens"}; }
  ScalePassage passage(std::size_t input) const { return input == 0 ? ScalePassage::kRead : ScalePassage::kBlocked; }
  bool keeps_rows(std::size_t input) const { return input == 2; }
};

using ExpertOperations = Family<Route, SelectTokens, TakeRouted, Expert>;

}  // namespace layerpress::graph
