#include "layerpress/graph/facts/scale_absorbers.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <variant>

namespace layerpress::graph {
namespace {

using Runs = std::vector<ChannelRun>;

ScalePassage passage_of(const Operation& operation, std::size_t input) {
  const auto passage = [&](const auto& kind) {
    if constexpr (requires { kind.passage(input); }) return kind.passage(input);
    return ScalePassage::kBlocked;
  };
  return std::visit(passage, operation);
}

/// The part of a run inside channels [begin, end), moved so that `begin` is at `place`.
std::optional<ChannelRun> part_of(const ChannelRun& run, std::int64_t begin, std::int64_t end, std::int64_t place) {
  const std::int64_t first = std::max(run.first, begin), last = std::min(run.first + run.count, end);
  if (first >= last) return std::nullopt;
  return ChannelRun{run.source + first - run.first, first - begin + place, last - first};
}

Runs sliced(const Runs& runs, const Slice& slice, std::int64_t features) {
  Runs parts;
  const std::int64_t width = slice.end - slice.begin;
  for (std::int64_t head = 0; head < features / slice.size; ++head)
    for (const ChannelRun& run : runs)
      if (const auto part = part_of(run, head * slice.size + slice.begin, head * slice.size + slice.end, head * width))
        parts.push_back(*part);
  return parts;
}

/// The features of a node that can be a source; 0 for other nodes.
std::int64_t source_features(const Graph& graph, const Node& node) {
  const std::int64_t features = graph.values[node.output].features;
  if (std::holds_alternative<Linear>(node.operation)) return features;
  if (const auto* norm = std::get_if<RmsNorm>(&node.operation)) return norm->size == features ? features : 0;
  if (const auto* norm = std::get_if<LayerNorm>(&node.operation)) return norm->size == features ? features : 0;
  return 0;
}

const std::string& column_weight(const Operation& operation) {
  const auto* expert = std::get_if<Expert>(&operation);
  return expert != nullptr ? expert->down : std::get<Linear>(operation).weight;
}

/// Follows a scale from its source to its readers.
class Search {
 public:
  Search(const Graph& graph, const std::vector<std::vector<NodeId>>& consumers,
         const std::map<std::string, std::vector<NodeId>>& users, NodeId source)
      : graph_(graph), consumers_(consumers), users_(users), source_(source) {}

  std::optional<ScaleAbsorber> find() {
    const std::int64_t features = source_features(graph_, graph_.nodes[source_]);
    if (features == 0) return std::nullopt;
    for (const WeightUse& use : weights_of(graph_.nodes[source_].operation))
      if (users_.at(use.name).size() > 1) return std::nullopt;
    state_.assign(static_cast<std::size_t>(features), State::kUnread);
    scale(graph_.nodes[source_].output, {{0, 0, features}});
    while (!open_.empty()) follow(*open_.begin());
    block_shared_weights();
    return result();
  }

 private:
  enum class State { kUnread, kRead, kBlocked };

  void scale(ValueId value, Runs runs) {
    if (value == graph_.output) mark(runs, State::kBlocked);
    scaled_[value] = std::move(runs);
    open_.insert(consumers_[value].begin(), consumers_[value].end());
  }

  void mark(const Runs& runs, State state) {
    for (const ChannelRun& run : runs)
      for (std::int64_t channel = run.source; channel < run.source + run.count; ++channel)
        state_[channel] = std::max(state_[channel], state);
  }

  /// Node by node in the graph's order, so that all inputs that are scaled are known.
  void follow(NodeId n) {
    open_.erase(n);
    const Node& node = graph_.nodes[n];
    for (std::size_t input = 0; input < node.inputs.size(); ++input) {
      const auto found = scaled_.find(node.inputs[input]);
      if (found == scaled_.end()) continue;
      const Runs& runs = found->second;
      switch (passage_of(node.operation, input)) {
        case ScalePassage::kBlocked:
          mark(runs, State::kBlocked);
          break;
        case ScalePassage::kPasses:
          scale(node.output, runs);
          break;
        case ScalePassage::kSliced:
          scale(node.output, sliced(runs, std::get<Slice>(node.operation), graph_.values[node.inputs[input]].features));
          break;
        case ScalePassage::kRead:
          read(n, runs);
          break;
      }
    }
  }

  void read(NodeId n, const Runs& runs) {
    mark(runs, State::kRead);
    const std::string& weight = column_weight(graph_.nodes[n].operation);
    const auto same = [&](const ScaleReader& reader) { return reader.weight == weight; };
    const auto known = std::find_if(readers_.begin(), readers_.end(), same);
    if (known == readers_.end()) {
      readers_.push_back({n, weight, runs});
    } else if (known->columns != runs) {
      mark(known->columns, State::kBlocked);
      mark(runs, State::kBlocked);
    }
    readings_.insert(n);
  }

  /// A weight that other nodes read, too, has to stay as it is.
  void block_shared_weights() {
    for (const ScaleReader& reader : readers_)
      for (const NodeId user : users_.at(reader.weight))
        if (readings_.count(user) == 0) mark(reader.columns, State::kBlocked);
  }

  /// The pieces of a run that can be scaled.
  void add_free(const ChannelRun& run, Runs& free) const {
    std::int64_t begin = -1;
    for (std::int64_t i = 0; i <= run.count; ++i) {
      const bool is_free = i < run.count && state_[run.source + i] == State::kRead;
      if (is_free && begin < 0) begin = i;
      if (is_free || begin < 0) continue;
      free.push_back({run.source + begin, run.first + begin, i - begin});
      begin = -1;
    }
  }

  std::optional<ScaleAbsorber> result() const {
    ScaleAbsorber absorber{source_, {}, {}, {}};
    add_free({0, 0, static_cast<std::int64_t>(state_.size())}, absorber.channels);
    if (absorber.channels.empty()) return std::nullopt;
    for (const ScaleReader& reader : readers_) {
      ScaleReader own{reader.node, reader.weight, {}};
      for (const ChannelRun& run : reader.columns) add_free(run, own.columns);
      if (!own.columns.empty()) absorber.readers.push_back(std::move(own));
    }
    for (const auto& [value, runs] : scaled_) {
      ScaledValue scaled{value, {}};
      for (const ChannelRun& run : runs) add_free(run, scaled.channels);
      if (!scaled.channels.empty()) absorber.values.push_back(std::move(scaled));
    }
    return absorber;
  }

  const Graph& graph_;
  const std::vector<std::vector<NodeId>>& consumers_;
  const std::map<std::string, std::vector<NodeId>>& users_;
  NodeId source_;
  std::map<ValueId, Runs> scaled_;
  std::set<NodeId> open_, readings_;
  std::vector<ScaleReader> readers_;
  std::vector<State> state_;  // by channel of the source
};

}  // namespace

std::vector<std::string> ScaleAbsorber::parameters(const Graph& graph) const {
  std::vector<std::string> names;
  for (const WeightUse& use : weights_of(graph.nodes[source].operation)) names.push_back(use.name);
  for (const ScaleReader& reader : readers) names.push_back(reader.weight);
  return names;
}

std::vector<ScaleAbsorber> scale_absorbers(const Graph& graph) {
  const auto consumers = graph.consumers();
  std::map<std::string, std::vector<NodeId>> users;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    for (const WeightUse& use : weights_of(graph.nodes[n].operation)) users[use.name].push_back(static_cast<NodeId>(n));
  std::vector<ScaleAbsorber> absorbers;
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    if (auto found = Search(graph, consumers, users, static_cast<NodeId>(n)).find())
      absorbers.push_back(std::move(*found));
  return absorbers;
}

}  // namespace layerpress::graph
