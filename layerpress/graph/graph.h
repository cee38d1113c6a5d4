#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "layerpress/graph/operations.h"
#include "layerpress/graph/rows.h"

namespace layerpress::graph {

using ValueId = std::int32_t;
using NodeId = std::int32_t;
using ModuleId = std::int32_t;

/// A data edge: one node produces it and others read it. [rows, features], or token ids [tokens] if features is 0.
struct Value {
  std::int64_t features = 0;
  NodeId producer = -1;  ///< -1: an input of the graph
  Rows rows = Rows::kTokens;
};

/// One operation. Every node has one output.
struct Node {
  Operation operation;
  std::vector<ValueId> inputs;
  ValueId output = -1;
  ModuleId module = -1;  ///< the innermost module the operation was recorded in
};

/// A module of the traced model: full dotted name, class name, and the enclosing module (-1: none).
struct Module {
  std::string name;
  std::string class_name;
  ModuleId parent = -1;
};

/// Angles of a rotary embedding: cos/sin(position * inverse_frequencies[i]) * attention_scaling. Samples longer than
/// `original_length` (if > 0) use `long_inverse_frequencies` if given (longrope). With ntk_factor > 0 (dynamic NTK),
/// they use frequencies of a base that grows with the sample's length.
struct RopeTable {
  std::vector<double> inverse_frequencies;
  std::vector<double> long_inverse_frequencies;
  double attention_scaling = 1;
  std::int64_t original_length = 0;
  double theta = 10000;
  double ntk_factor = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("inverse_frequencies", self.inverse_frequencies);
    field("long_inverse_frequencies", self.long_inverse_frequencies);
    field("attention_scaling", self.attention_scaling), field("original_length", self.original_length);
    field("theta", self.theta), field("ntk_factor", self.ntk_factor);
  }
  bool operator==(const RopeTable&) const = default;
  /// The frequencies for a sample of `length` tokens.
  std::vector<double> frequencies_for(std::int64_t length) const;
};

/// A tensor that no checkpoint holds, such as a rotary embedding's frequencies.
struct Constant {
  std::string name;
  std::string dtype;  ///< "float32"
  std::vector<std::int64_t> shape;
  std::string bytes;  ///< its elements, in the order of memory
  bool operator==(const Constant&) const = default;
};

/// A model as a graph of operations (nodes) and data edges (values).
///
/// Design goals: a plain value type that can be printed, and that knows nothing of devices, batches or
/// ranks. Non-goals: control flow, in-place operations, several outputs per node.
///
/// Invariants (lint): nodes are in topological order; value 0 is an input, the token ids; values directly after it
/// without a producer are further inputs; every other value has exactly one producer; `output` is a value.
struct Graph {
  std::vector<Node> nodes;
  std::vector<Value> values;
  std::vector<Module> modules;
  std::vector<RopeTable> rope_tables;
  std::vector<Constant> constants;
  ValueId output = -1;

  static constexpr ValueId kInput = 0;  ///< token ids

  /// Whether the value is an input of the graph, which the batch provides.
  bool is_input(ValueId value) const { return values.at(value).producer < 0; }

  const std::string& module_name(const Node& node) const { return modules.at(node.module).name; }
  /// For each value, the nodes that read it, in order.
  std::vector<std::vector<NodeId>> consumers() const;
};

/// Throws InternalError naming the first broken invariant; also checks that feature counts fit each operation.
void lint(const Graph& graph);

/// Names of all weights that `nodes` read, each once.
std::vector<std::string> weight_names(const Graph& graph, const std::vector<NodeId>& nodes);

/// Names of all weights that the graph reads.
std::set<std::string> weights_read(const Graph& graph);

}  // namespace layerpress::graph
