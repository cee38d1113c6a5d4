#pragma once

#include <map>
#include <set>
#include <vector>

#include "layerpress/importer/lowering.h"

namespace layerpress::importer {

/// The operators that become one `aten` node, in order. `root` is their last, whose value the node gives.
struct Region {
  std::int64_t root = -1;
  std::vector<const ExportedNode*> nodes;
};

/// Divides the operators that no lowering covers into regions. A region ends at a value that a node of ours reads, that
/// is the model's output, or that several regions read; operators before it belong to all regions that need them, if
/// their values cannot be kept as rows of tokens (masks, rotary tables) or do not depend on the tokens' features.
class Regions {
 public:
  Regions(const ExportedGraph& graph, const Layouts& layouts, const Lowerings& lowered, std::int64_t output);

  const std::map<std::int64_t, Region>& all() const { return regions_; }
  /// Whether a lowered value is needed by anything.
  bool is_needed(std::int64_t value) const { return needed_.count(value) != 0; }
  /// Where a region takes the value of an argument from: a node of ours or another region (the value there), or -1 if it
  /// is computed inside.
  std::int64_t outside(std::int64_t value, const Region& region) const;

 private:
  bool can_be_kept(std::int64_t value) const;
  void find_dependent();

  const ExportedGraph& graph_;
  const Layouts& layouts_;
  const Lowerings& lowered_;
  std::set<std::int64_t> needed_;
  std::vector<bool> dependent_;                             // whether the value depends on the tokens' features
  std::map<std::int64_t, std::set<std::int64_t>> readers_;  // regions by the values that they compute
  std::map<std::int64_t, Region> regions_;
};

}  // namespace layerpress::importer
