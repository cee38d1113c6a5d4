#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/text.h"
#include "layerpress/graph/rows.h"

namespace layerpress::graph {

// The common parts of node kinds. A kind is a struct in the file of its family. It has:
//
//   kKind                     its name in the text form
//   visit(self, field)        lists its attributes once; the text form and comparisons are derived from it
//   check(node)               throws if a node's inputs and output do not fit (lint)
//   weights()                 the weights that it reads; without it, none
//   details(module)           lines that distinguish it in a picture; without it, sizes of input and output that differ
//   passage(input)            the effect of a scale of an input's channels; without it, the scale is blocked
//   keeps_rows(input)         whether a row of the output is the input's row times a number, plus other such rows; without it, no
//
// Its execution, workspace and operation count are in the file of the same name in execution/operations. Weights are
// named as in the checkpoint; "" means no weight. A value is [rows, features]; token ids are [tokens].

/// The kinds of nodes of one family.
template <typename... Kinds>
struct Family {};

/// A weight that an operation reads, with its required shape.
struct WeightUse {
  std::string name;
  std::vector<std::int64_t> shape;
};
using WeightUses = std::vector<WeightUse>;

/// The effect of a scale of one input's channels: it goes no further, it scales the output's channels, it scales those
/// of them that are selected, or the columns of a weight are multiplied with the channels.
enum class ScalePassage { kBlocked, kPasses, kSliced, kRead };

inline ScalePassage passes_only(std::size_t wanted, std::size_t input) {
  return input == wanted ? ScalePassage::kPasses : ScalePassage::kBlocked;
}

struct Graph;
struct Node;

/// A node's inputs and output, to be checked against its operation.
class NodeCheck {
 public:
  NodeCheck(const Graph& graph, const Node& node) : graph_(graph), node_(node) {}

  const Graph& graph() const { return graph_; }
  const Node& node() const { return node_; }
  std::size_t inputs() const;
  std::int64_t features(std::size_t input) const;
  Rows rows(std::size_t input) const;
  /// Pairs of features that a table rotates; -1 if the graph has no such table.
  std::int64_t rotated_pairs(std::int64_t table) const;
  bool has_constant(std::int64_t constant) const;

  /// Throws InternalError that quotes `what` unless the condition holds.
  void require(bool condition, const char* what) const;
  /// Requires `count` inputs, the first of which have these features.
  void expect(std::size_t count, const std::vector<std::int64_t>& sizes) const;
  /// Requires one input whose features are runs of `size`.
  void runs(std::int64_t size) const;
  void in_patches() const;
  /// Requires two inputs alike, and an output like them.
  void same_inputs() const;
  /// Requires these features of the output, and the first input's rows or the given ones.
  void output(std::int64_t size) const { output(size, rows(0)); }
  void output(std::int64_t size, Rows rows) const;

 private:
  const Graph& graph_;
  const Node& node_;
};

// Texts for pictures.

/// "576 → 1536".
std::string sizes_text(std::int64_t in, std::int64_t out);
/// "9 heads", or "9 heads, 3 for k, v".
std::string heads_text(std::int64_t heads, std::int64_t kv_heads);
/// With four significant digits.
std::string number_text(double number);

}  // namespace layerpress::graph
