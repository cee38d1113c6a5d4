#include "layerpress/graph/facts/value_heads.h"

#include <algorithm>
#include <map>
#include <variant>

#include "layerpress/graph/facts/attention_heads.h"

namespace layerpress::graph {
namespace {

class HeadSearch {
 public:
  explicit HeadSearch(const Graph& graph) : graph_(graph), consumers_(graph.consumers()) {
    for (const Node& node : graph.nodes)
      for (const WeightUse& use : weights_of(node.operation)) ++uses_[use.name];
  }

  /// Nothing in `found` but a reason, or "".
  std::string find(NodeId n, const AttentionHeads& heads, ValueHeads& found) const {
    found.attention = n;
    found.head_dim = heads.value_dim;
    const Node& attention = graph_.nodes[n];
    if (std::string reason = find_source(attention.inputs[2], found); !reason.empty()) return reason;
    for (const NodeId reader : consumers_[attention.output]) {
      const auto* linear = std::get_if<Linear>(&graph_.nodes[reader].operation);
      if (linear == nullptr || uses_.at(linear->weight) > 1) return "not only linears read its output";
      found.readers.push_back(reader);
    }
    return found.readers.empty() || attention.output == graph_.output ? "no linear reads its output" : "";
  }

 private:
  std::string find_source(ValueId value, ValueHeads& found) const {
    const std::vector<ValueId>& read = graph_.nodes[found.attention].inputs;
    if (consumers_[value].size() != 1 || std::count(read.begin(), read.end(), value) > 1)
      return "its values have other readers";
    if (graph_.is_input(value)) return "no linear makes its values";
    found.linear = graph_.values[value].producer;
    const auto* slice = std::get_if<Slice>(&graph_.nodes[found.linear].operation);
    const std::int64_t features = graph_.values[value].features;
    if (slice == nullptr) {
      found.rows = {{0, features}};
    } else {
      const ValueId whole = graph_.nodes[found.linear].inputs[0];
      const std::int64_t width = slice->end - slice->begin;
      for (std::int64_t run = 0; run < features / width; ++run)
        found.rows.push_back({run * slice->size + slice->begin, width});
      if (graph_.is_input(whole) || !is_read_apart(whole, *slice)) return "its values have other readers";
      found.linear = graph_.values[whole].producer;
      if (width % found.head_dim != 0) return "its values are parts of heads";
    }
    const auto* linear = std::get_if<Linear>(&graph_.nodes[found.linear].operation);
    if (linear == nullptr) return "no linear makes its values";
    return uses_.at(linear->weight) > 1 ? "its values' weight has other readers" : "";
  }

  /// Whether no other node reads what the slice takes.
  bool is_read_apart(ValueId whole, const Slice& slice) const {
    return std::count_if(consumers_[whole].begin(), consumers_[whole].end(), [&](NodeId n) {
             const auto* other = std::get_if<Slice>(&graph_.nodes[n].operation);
             return other == nullptr || other->size != slice.size ||
                    (other->begin < slice.end && other->end > slice.begin);
           }) == 1;
  }

  const Graph& graph_;
  std::vector<std::vector<NodeId>> consumers_;
  std::map<std::string, int> uses_;
};

}  // namespace

AllValueHeads value_heads(const Graph& graph) {
  const HeadSearch search(graph);
  AllValueHeads all;
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const auto heads = cached_attention(graph.nodes[n].operation);
    if (!heads) continue;
    ValueHeads found;
    if (std::string reason = search.find(n, *heads, found); reason.empty())
      all.heads.push_back(std::move(found));
    else
      all.others.emplace_back(n, std::move(reason));
  }
  return all;
}

}  // namespace layerpress::graph
