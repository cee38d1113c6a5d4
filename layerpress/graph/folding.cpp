#include "layerpress/graph/folding.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>

namespace layerpress::graph {
namespace {

/// Numbers items by their first appearance.
template <typename Thing>
class Ordinals {
 public:
  std::size_t of(const Thing& thing) { return numbers_.emplace(thing, numbers_.size()).first->second; }

 private:
  std::map<Thing, std::size_t> numbers_;
};

/// A block without names, as text, and the outside values that it reads, by first appearance.
struct BlockShape {
  std::string text;
  std::vector<ValueId> outside;
};

class ShapeWriter {
 public:
  explicit ShapeWriter(const Graph& graph) : graph_(graph) {}

  BlockShape shape(const std::vector<NodeId>& block) {
    for (const NodeId n : block) {
      const Node& node = graph_.nodes[n];
      shape_.text += kind_name(node.operation);
      add_attributes(node.operation);
      for (const ValueId input : node.inputs) add_input(input);
      inside_.emplace(node.output, inside_.size());
    }
    return std::move(shape_);
  }

 private:
  void add_attributes(const Operation& operation) {
    const std::vector<WeightUse> weights = weights_of(operation);
    const auto is_weight = [&](const std::string& name) {
      return std::any_of(weights.begin(), weights.end(), [&](const WeightUse& use) { return use.name == name; });
    };
    const auto add = [&](std::string_view name, const auto& value) {
      if (name == "expert") return;  // identifies the expert, not the operation
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>) {
        if (is_weight(value)) {
          shape_.text += fmt::format(" {}=#{}", name, weights_.of(value));
          return;
        }
      }
      if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::vector<std::string>>)
        for (const std::string& weight : value) shape_.text += fmt::format(" {}=#{}", name, weights_.of(weight));
      else
        shape_.text += fmt::format(" {}={}", name, value);
    };
    std::visit([&](const auto& op) { std::decay_t<decltype(op)>::visit(op, add); }, operation);
  }

  void add_input(ValueId input) {
    const auto found = inside_.find(input);
    if (found != inside_.end()) {
      shape_.text += fmt::format(" %{}", found->second);
      return;
    }
    const std::size_t slot = outside_.of(input);
    if (slot == shape_.outside.size()) shape_.outside.push_back(input);
    const Value& value = graph_.values[input];
    shape_.text += fmt::format(" in{}[{} {}]", slot, value.features, rows_name(value.rows));
  }

  const Graph& graph_;
  BlockShape shape_;
  std::map<ValueId, std::size_t> inside_;
  Ordinals<ValueId> outside_;
  Ordinals<std::string> weights_;
};

class Repetitions {
 public:
  Repetitions(const Graph& graph, const std::vector<std::vector<NodeId>>& blocks, std::size_t least_nodes)
      : blocks_(blocks), least_nodes_(least_nodes), places_(graph.values.size()) {
    Ordinals<std::string> kinds;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      BlockShape shape = ShapeWriter(graph).shape(blocks[b]);
      kinds_.push_back(kinds.of(shape.text));
      outside_.push_back(std::move(shape.outside));
      for (std::size_t i = 0; i < blocks[b].size(); ++i)
        places_[graph.nodes[blocks[b][i]].output] = {static_cast<std::ptrdiff_t>(b), i};
    }
    shown_first_.assign(blocks.size(), blocks.size());
  }

  std::vector<Folded> fold() {
    fold(0, blocks_.size());
    return std::move(result_);
  }

 private:
  struct Place {
    std::ptrdiff_t block = -1;  ///< the block that produces a value; -1: none of the list
    std::size_t position = 0;
  };
  struct Run {
    std::size_t period = 0;
    std::size_t times = 1;
    std::size_t saved() const { return period * (times - 1); }
  };

  void fold(std::size_t begin, std::size_t end) {
    while (begin < end) {
      const Run run = longest_run(begin, end);
      if (run.times < 2) {
        show(begin++);
        continue;
      }
      if (run.period == 1)
        show(begin);
      else
        fold(begin, begin + run.period);
      hide(begin, run);
      begin += run.period * run.times;
    }
  }

  /// The run from `begin` that hides the most blocks.
  Run longest_run(std::size_t begin, std::size_t end) const {
    Run best;
    for (std::size_t period = 1; 2 * period <= end - begin; ++period) {
      if (!worth_hiding(begin, period)) continue;
      std::size_t same = 0;
      while (begin + period + same < end && repeats(begin, begin + same, period)) ++same;
      const Run run{period, 1 + same / period};
      if (run.saved() > best.saved()) best = run;
    }
    return best;
  }

  bool worth_hiding(std::size_t first, std::size_t count) const {
    constexpr std::size_t kLeastTogether = 4;
    std::size_t nodes = 0;
    for (std::size_t b = first; b < first + count; ++b) {
      if (blocks_[b].size() < least_nodes_) return false;
      nodes += blocks_[b].size();
    }
    return nodes >= kLeastTogether;
  }

  /// Whether block + period repeats `block` in the next repetition. The first repetition begins with block `first`.
  bool repeats(std::size_t first, std::size_t block, std::size_t period) const {
    if (kinds_[block] != kinds_[block + period]) return false;
    const auto begin = static_cast<std::ptrdiff_t>(first), step = static_cast<std::ptrdiff_t>(period);
    for (std::size_t i = 0; i < outside_[block].size(); ++i) {
      const ValueId here = outside_[block][i], there = outside_[block + period][i];
      const Place from = places_[here], to = places_[there];
      const bool fixed = here == there && from.block < begin;
      const bool carried = from.block >= begin && to.block == from.block + step && to.position == from.position;
      // The first repetition reads from before the run what later repetitions read from the previous one.
      const bool begun = from.block < begin && to.block >= begin && block < first + period;
      if (!fixed && !carried && !begun) return false;
    }
    return true;
  }

  /// Shows a block in full, unless a block of its kind is already shown.
  void show(std::size_t block) {
    std::size_t& shown = shown_first_[kinds_[block]];
    if (shown < block && worth_hiding(block, 1)) {
      result_.push_back({block, 1, 1, shown});
      return;
    }
    shown = std::min(shown, block);
    result_.push_back({block});
  }

  void hide(std::size_t begin, Run run) {
    Folded& last = result_.back();
    if (run.period == 1 && last.period == 1 && last.first + last.count == begin + 1)
      last.count += run.times - 1;
    else
      result_.push_back({begin + run.period, run.saved(), run.period, begin});
  }

  const std::vector<std::vector<NodeId>>& blocks_;
  std::size_t least_nodes_;
  std::vector<Place> places_;                  // of each value
  std::vector<std::size_t> kinds_;             // of each block: equal for those that are alike
  std::vector<std::vector<ValueId>> outside_;  // of each block: the values it reads
  std::vector<std::size_t> shown_first_;       // of each kind: the block that is shown in full
  std::vector<Folded> result_;
};

}  // namespace

std::vector<Folded> fold(const Graph& graph, const std::vector<std::vector<NodeId>>& blocks, std::size_t least_nodes) {
  return Repetitions(graph, blocks, least_nodes).fold();
}

}  // namespace layerpress::graph
