#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Operations that treat every element by itself.

/// activation(a) * b for inputs a, b. `function`: "silu", "gelu", "gelu_tanh".
struct GatedActivation {
  static constexpr const char* kKind = "gated_activation";
  std::string function = "silu";
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("function", self.function);
  }
  void check(const NodeCheck& node) const { node.expect(2, {}), node.same_inputs(); }
  std::vector<std::string> details(const std::string&) const { return {function}; }
  ScalePassage passage(std::size_t input) const { return passes_only(1, input); }
};

/// function(x), with the functions of GatedActivation.
struct Activation {
  static constexpr const char* kKind = "activation";
  std::string function = "gelu";
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("function", self.function);
  }
  void check(const NodeCheck& node) const { node.expect(1, {}), node.output(node.features(0)); }
  std::vector<std::string> details(const std::string&) const { return {function}; }
};

/// a + b.
struct Add {
  static constexpr const char* kKind = "add";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
  void check(const NodeCheck& node) const { node.expect(2, {}), node.same_inputs(); }
  bool keeps_rows(std::size_t) const { return true; }
};

/// sigmoid(a) * b; input a has one feature per row.
struct Gate {
  static constexpr const char* kKind = "gate";
  template <typename Self, typename Visitor>
  static void visit(Self&, Visitor&&) {}
  void check(const NodeCheck& node) const {
    node.expect(2, {1});
    node.require(node.rows(0) == node.rows(1), "equal rows of both inputs");
    node.output(node.features(1));
  }
  ScalePassage passage(std::size_t input) const { return passes_only(1, input); }
  bool keeps_rows(std::size_t input) const { return input == 1; }
};

/// a + tanh(gate) * b.
struct GatedAdd {
  static constexpr const char* kKind = "gated_add";
  std::string gate;  ///< [1]
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("gate", self.gate);
  }
  WeightUses weights() const { return {{gate, {1}}}; }
  void check(const NodeCheck& node) const { node.expect(2, {}), node.same_inputs(); }
  bool keeps_rows(std::size_t) const { return true; }
};

/// x * factor.
struct Scale {
  static constexpr const char* kKind = "scale";
  double factor = 1;
  bool rounded_factor = false;  ///< the factor is rounded to x's dtype first
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("factor", self.factor), field("rounded_factor", self.rounded_factor);
  }
  void check(const NodeCheck& node) const { node.expect(1, {}), node.output(node.features(0)); }
  std::vector<std::string> details(const std::string&) const { return {number_text(factor)}; }
  ScalePassage passage(std::size_t input) const { return passes_only(0, input); }
  bool keeps_rows(std::size_t) const { return true; }
};

/// cap * tanh(x / cap).
struct SoftCap {
  static constexpr const char* kKind = "soft_cap";
  double cap = 1;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("cap", self.cap);
  }
  void check(const NodeCheck& node) const {
    node.expect(1, {});
    node.require(cap > 0, "a cap is positive");
    node.output(node.features(0));
  }
};

using Elementwise = Family<GatedActivation, Activation, Add, Gate, GatedAdd, Scale, SoftCap>;

}  // namespace layerpress::graph
