#include "layerpress/graph/facts/expert_layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"

namespace layerpress::graph {
namespace {

void add_weights(const Node& node, std::vector<std::string>& names) {
  for (const WeightUse& use : weights_of(node.operation)) names.push_back(use.name);
}

/// Follows an expert's rows back through its linears. Returns the value that these read.
ValueId add_inner(const Graph& graph, ValueId value, std::vector<std::string>& names) {
  const Node& node = graph.nodes.at(graph.values.at(value).producer);
  add_weights(node, names);
  if (!std::holds_alternative<Linear>(node.operation)) {
    ValueId input = -1;
    // Gate and up read one value; a routing is no input of theirs.
    const bool takes = std::holds_alternative<TakeRouted>(node.operation);
    for (std::size_t i = 0; i < (takes ? 1 : node.inputs.size()); ++i) input = add_inner(graph, node.inputs[i], names);
    return input;
  }
  const NodeId before = graph.values[node.inputs[0]].producer;
  const bool selects = before >= 0 && std::holds_alternative<SelectTokens>(graph.nodes[before].operation);
  return selects ? graph.nodes[before].inputs[0] : node.inputs[0];
}

/// The nodes from `first` on that a value is computed by, up to `end`, which is left out.
std::set<NodeId> ancestors(const Graph& graph, ValueId value, NodeId first, ValueId end = -1) {
  std::set<NodeId> found;
  std::vector<ValueId> open = {value};
  while (!open.empty()) {
    const ValueId next = open.back();
    const NodeId n = graph.values.at(next).producer;
    open.pop_back();
    if (next == end || n < first || n < 0 || !found.insert(n).second) continue;
    open.insert(open.end(), graph.nodes[n].inputs.begin(), graph.nodes[n].inputs.end());
  }
  return found;
}

}  // namespace

std::vector<WeightUse> ExpertLayer::router_weights(const Graph& graph) const {
  const std::set<NodeId> before = ancestors(graph, input, first, logits);
  std::map<std::string, WeightUse> uses;
  for (const NodeId n : ancestors(graph, routing, first))
    if (before.count(n) == 0)
      for (WeightUse& use : weights_of(graph.nodes[n].operation)) uses.emplace(use.name, use);
  std::vector<WeightUse> weights;
  for (auto& [name, use] : uses) weights.push_back(std::move(use));
  return weights;
}

std::vector<ExpertLayer> expert_layers(const Graph& graph) {
  std::vector<ExpertLayer> layers;
  std::map<ValueId, std::size_t> by_routing;
  NodeId last = -1;  // expert's node
  for (NodeId n = 0; n < static_cast<NodeId>(graph.nodes.size()); ++n) {
    const Node& node = graph.nodes[n];
    const auto* expert = std::get_if<Expert>(&node.operation);
    if (expert == nullptr) continue;
    const auto [place, is_new] = by_routing.emplace(node.inputs[1], layers.size());
    if (is_new) {
      const ModuleId list = graph.modules.at(node.module).parent;
      const std::string name = list < 0 ? graph.module_name(node) : graph.modules[list].name;
      layers.push_back({.name = parent_name(name), .list = name, .routing = node.inputs[1], .first = last + 1});
      layers.back().experts.resize(static_cast<std::size_t>(expert->experts));
    }
    ExpertLayer& layer = layers[place->second];
    ExpertLayer::Member& member = layer.experts.at(static_cast<std::size_t>(expert->expert));
    member.node = n;
    layer.input = add_inner(graph, node.inputs[0], member.weights);
    layer.logits = graph.nodes.at(graph.values.at(node.inputs[0]).producer).inputs.at(1);
    add_weights(node, member.weights);
    last = n;
  }
  for (const ExpertLayer& layer : layers)
    for (const ExpertLayer::Member& member : layer.experts)
      if (member.node < 0 || member.weights.size() != layer.experts.front().weights.size())
        throw InternalError("[graph.experts] {} has experts of several kinds", layer.list);
  return layers;
}

}  // namespace layerpress::graph
