#pragma once

#include <cstddef>
#include <cstdint>

#include "layerpress/graph/operations/operation.h"

namespace layerpress::graph {

// Operations that select and join features.

/// Features [begin, end) of each `size` consecutive features (a whole row, or one head of it), concatenated.
struct Slice {
  static constexpr const char* kKind = "slice";
  std::int64_t size = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("size", self.size), field("begin", self.begin), field("end", self.end);
  }
  void check(const NodeCheck& node) const {
    node.runs(size);
    node.require(begin >= 0 && begin < end && end <= size, "the slice lies inside a run");
    node.output(node.features(0) / size * (end - begin));
  }
  ScalePassage passage(std::size_t) const { return ScalePassage::kSliced; }
};

/// Inputs a [tokens, heads * first] and b [tokens, second]. The output has, for every head, its part of a and then all
/// of b.
struct JoinHeads {
  static constexpr const char* kKind = "join_heads";
  std::int64_t heads = 0;
  std::int64_t first = 0;
  std::int64_t second = 0;
  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("heads", self.heads), field("first", self.first), field("second", self.second);
  }
  void check(const NodeCheck& node) const {
    node.expect(2, {heads * first, second});
    node.require(node.rows(0) == node.rows(1), "equal rows of both inputs");
    node.output(heads * (first + second));
  }
};

using Layouts = Family<Slice, JoinHeads>;

}  // namespace layerpress::graph
