#pragma once

#include <cstdint>
#include <string>

namespace layerpress::graph {

// Mixtures of experts. A router's linear gives logits [tokens, experts]; from there on:
//
//   routing = route(logits)                                  weights of the chosen experts, 0 for the others
//   of every expert e:
//     x_e = select_tokens(x, logits, routing)                what it is calibrated on
//     h_e = gated_activation(gate(x_e), up(x_e))
//     down(h_e)                                              its linears, as any others; nothing reads what down gives
//     r_e = take_routed(h_e, logits, routing)                rows of its own tokens
//     y = expert(r_e, routing, y of the experts before)      what it adds to the layer's output, on its own tokens
//
// So every linear of every expert is a node with a name, an input and statistics like any other linear, and is computed on
// all that it is calibrated on; the layer's output needs only the chosen experts. Where only that is wanted, rows are taken
// before gate and up instead of after them.

/// Logits [tokens, experts] -> the weight that each expert's output gets, 0 for those not chosen.
struct Route {
  static constexpr const char* kKind = "route";
  std::int64_t experts = 0;
  std::int64_t top_k = 0;
  std::string scores =
      "softmax";            ///< of the logits: "softmax", "sigmoid", or "chosen_softmax" (of the chosen ones only)
  bool normalize = false;   ///< the chosen weights of a token add up to 1
  double scale = 1;         ///< of all weights, in the end
  std::string bias;         ///< [experts], added to scores where they are compared, not where they weigh; or ""
  std::int64_t groups = 1;  ///< experts are chosen from `top_groups` of these groups only
  std::int64_t top_groups = 1;
  std::string group_score = "max";  ///< a group counts by its best expert ("max"), or the sum of its best two ("top2")
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("experts", self.experts), field("top_k", self.top_k), field("scores", self.scores);
    field("normalize", self.normalize), field("scale", self.scale), field("bias", self.bias);
    field("groups", self.groups), field("top_groups", self.top_groups), field("group_score", self.group_score);
  }
};

/// Rows of x that an expert is calibrated on: inputs x, logits, routing. Those routed to it, and where they are too few
/// those with its highest scores.
struct SelectTokens {
  static constexpr const char* kKind = "select_tokens";
  std::int64_t expert = 0;
  std::int64_t experts = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("expert", self.expert), field("experts", self.experts);
  }
};

/// Rows of a value of an expert that are routed to it; inputs the value, whose rows are all tokens or those that SelectTokens
/// gave, logits, routing.
struct TakeRouted {
  static constexpr const char* kKind = "take_routed";
  std::int64_t expert = 0;
  std::int64_t experts = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("expert", self.expert), field("experts", self.experts);
  }
};

/// sum + routing[:, expert] * down(r) on the rows that are routed to the expert, which are those of r; inputs r, routing,
/// and the sum over experts before, if there is one.
struct Expert {
  static constexpr const char* kKind = "expert";
  std::int64_t expert = 0;
  std::int64_t experts = 0;
  std::int64_t features = 0;
  std::int64_t intermediate = 0;
  std::string down;  ///< weight [features, intermediate]
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("expert", self.expert), field("experts", self.experts), field("features", self.features);
    field("intermediate", self.intermediate), field("down", self.down);
  }
};

}  // namespace layerpress::graph
