#include "layerpress/schedule/trial_stages.h"

#include <algorithm>
#include <set>
#include <string>
#include <variant>

#include "layerpress/base/error.h"

namespace layerpress::schedule {
namespace {

/// Whether a node lies in a module; -1 is the model.
bool holds(const graph::Graph& graph, graph::ModuleId outer, graph::NodeId n) {
  graph::ModuleId module = graph.nodes[n].module;
  while (module >= 0 && module != outer) module = graph.modules[module].parent;
  return module == outer || outer < 0;
}

/// The smallest module that holds all nodes and that the model calls as a whole.
graph::ModuleId module_around(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes) {
  const auto is_called = [&](graph::ModuleId module) {
    return !graph.modules[module].class_name.empty() && graph.modules[module].class_name != "ModuleList";
  };
  graph::ModuleId module = graph.nodes[nodes.front()].module;
  while (module >= 0 && !(is_called(module) &&
                          std::all_of(nodes.begin(), nodes.end(), [&](auto n) { return holds(graph, module, n); })))
    module = graph.modules[module].parent;
  return module;
}

/// Those of `candidates` that compute with a tried parameter or with a value that depends on one.
std::set<graph::NodeId> dependents(const graph::Graph& graph, const std::vector<graph::NodeId>& candidates,
                                   const std::vector<graph::NodeId>& balanced) {
  std::set<std::string> parameters;
  for (const graph::NodeId n : balanced)
    for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation)) parameters.insert(use.name);
  std::set<graph::NodeId> nodes;
  std::set<graph::ValueId> values;
  for (const graph::NodeId n : candidates) {
    const graph::Node& node = graph.nodes[n];
    const std::vector<graph::WeightUse> uses = graph::weights_of(node.operation);
    if (std::none_of(uses.begin(), uses.end(), [&](const auto& use) { return parameters.count(use.name) != 0; }) &&
        std::none_of(node.inputs.begin(), node.inputs.end(), [&](auto value) { return values.count(value) != 0; }))
      continue;
    nodes.insert(n);
    values.insert(node.output);
  }
  return nodes;
}

void add_once(std::vector<graph::ValueId>& values, graph::ValueId value) {
  if (std::find(values.begin(), values.end(), value) == values.end()) values.push_back(value);
}

}  // namespace

std::vector<graph::ValueId> trial_outputs(const graph::Graph& graph,
                                          const std::vector<std::vector<graph::NodeId>>& consumers,
                                          const std::vector<graph::NodeId>& balanced) {
  if (balanced.size() == 1) return {graph.nodes[balanced.front()].output};
  const graph::ModuleId around = module_around(graph, balanced);
  std::vector<graph::NodeId> inside;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n)
    if (holds(graph, around, n)) inside.push_back(n);
  std::vector<graph::ValueId> outputs;
  for (const graph::NodeId n : dependents(graph, inside, balanced)) {
    const std::vector<graph::NodeId>& readers = consumers[graph.nodes[n].output];
    if (std::any_of(readers.begin(), readers.end(), [&](auto reader) { return !holds(graph, around, reader); }))
      outputs.push_back(graph.nodes[n].output);
  }
  if (!outputs.empty()) return outputs;
  for (const graph::NodeId n : balanced) outputs.push_back(graph.nodes[n].output);
  return outputs;
}

TrialStages trial_stages(const graph::Graph& graph, const graph::Subgraph& subgraph, std::size_t transform,
                         const compression::TransformSite& site, const std::vector<bool>& stored) {
  const std::set<graph::NodeId> dependent = dependents(graph, subgraph.nodes, site.balanced);
  TrialStages stages{transform, {}, {}};
  stages.tried.keeps = site.trial_outputs;

  // From the outputs back to what is stored. A value that depends on tried parameters is not taken from the store.
  std::set<graph::ValueId> needed(stages.tried.keeps.begin(), stages.tried.keeps.end());
  const std::vector<graph::NodeId> backwards(subgraph.nodes.rbegin(), subgraph.nodes.rend());
  for (const graph::NodeId n : backwards) {
    const graph::Node& node = graph.nodes[n];
    const bool is_tried = dependent.count(n) != 0;
    if (needed.count(node.output) == 0 || (stored[node.output] && !is_tried)) continue;
    if (std::holds_alternative<graph::SelectTokens>(node.operation))
      throw RecipeError(
          "[recipe.check] {}: it requires all tokens in all experts; leave --no-moe-calibrate-all-experts out",
          graph.module_name(node));
    (is_tried ? stages.tried : stages.before).nodes.push_back(n);
    needed.insert(node.inputs.begin(), node.inputs.end());
  }
  std::reverse(stages.before.nodes.begin(), stages.before.nodes.end());
  std::reverse(stages.tried.nodes.begin(), stages.tried.nodes.end());

  std::set<graph::ValueId> made_before, made;
  for (const graph::NodeId n : stages.before.nodes) made_before.insert(graph.nodes[n].output);
  for (const graph::NodeId n : stages.tried.nodes) made.insert(graph.nodes[n].output);
  for (const graph::NodeId n : stages.before.nodes)
    for (const graph::ValueId input : graph.nodes[n].inputs)
      if (made_before.count(input) == 0) add_once(stages.before.inputs, input);
  for (const graph::NodeId n : stages.tried.nodes)
    for (const graph::ValueId input : graph.nodes[n].inputs) {
      if (made.count(input) != 0) continue;
      add_once(stages.tried.inputs, input);
      if (made_before.count(input) != 0) add_once(stages.before.keeps, input);
    }
  return stages;
}

}  // namespace layerpress::schedule
