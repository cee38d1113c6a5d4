#include "layerpress/setup/opening/tied_heads.h"

#include <ATen/ATen.h>

#include <map>
#include <set>
#include <string>
#include <variant>

#include "layerpress/base/error.h"
#include "layerpress/graph/weight_matrix.h"

namespace layerpress::setup {
namespace {

graph::Linear reading(graph::Linear linear, const std::string& weight) {
  linear.weight = weight;
  return linear;
}

}  // namespace

rewrite::Changes own_stored_heads(const rewrite::Model& model) {
  const graph::Graph& graph = model.traced.graph;
  const std::string kept = ": the head keeps its own weight, as in transformers";
  rewrite::Changes changes;
  if (model.traced.own_head) {
    changes.config = rewrite::untied_config(model.checkpoint->config());
    changes.text = "the stored head differs from the embedding, to which config.json ties it" + kept;
  }
  if (!model.traced.tied_head) return changes;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const auto* linear = std::get_if<graph::Linear>(&graph.nodes[n].operation);
    if (linear == nullptr) continue;
    const std::string own = graph.module_name(graph.nodes[n]) + ".weight";
    if (own == linear->weight || !model.checkpoint->contains(own) || !model.checkpoint->contains(linear->weight))
      continue;
    if (model.checkpoint->spec(own).shape != model.checkpoint->spec(linear->weight).shape) continue;
    if (model.checkpoint->tensor(own).equal(
            model.checkpoint->tensor(linear->weight).to(model.checkpoint->spec(own).dtype)))
      continue;
    changes.operations[n] = reading(*linear, own);
    changes.config = rewrite::untied_config(model.checkpoint->config());
    changes.text = fmt::format("{} differs from {}, to which config.json ties it{}", own, linear->weight, kept);
  }
  return changes;
}

rewrite::Changes untied_embeddings(const rewrite::Model& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  std::set<std::string> compressed;
  for (const auto& [node, assignment] : assignments.linears)
    if (const auto* embedding = std::get_if<graph::Embedding>(&graph.nodes[node].operation))
      compressed.insert(embedding->weight);
  rewrite::Changes changes;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    const auto* linear = std::get_if<graph::Linear>(&graph.nodes[n].operation);
    if (linear == nullptr || compressed.count(linear->weight) == 0) continue;
    const std::string own = graph.module_name(graph.nodes[n]) + ".weight";
    changes.operations[n] = reading(*linear, own);
    changes.copies.push_back({own, linear->weight});
  }
  return changes;
}

void require_own_weights(const rewrite::Model& model, const compression::Assignments& assignments) {
  const graph::Graph& graph = model.traced.graph;
  std::map<std::string, std::set<std::string>> users;  // modules by weight
  for (const graph::Node& node : graph.nodes)
    if (const auto matrix = graph::weight_matrix(node.operation)) users[matrix->weight].insert(graph.module_name(node));
  for (const auto& [n, assignment] : assignments.linears) {
    const std::string& module = graph.module_name(graph.nodes[n]);
    for (const std::string& other : users[graph::weight_matrix(graph.nodes[n].operation)->weight])
      if (other != module)
        throw RecipeError(
            "[recipe.check] {} shares its weight with {}, and a module in memory cannot keep both; add "
            "ignore=[\"{}\"] or give it a weight of its own",
            module, other, module);
  }
}

void require_no_new_weights(const checkpoint::Checkpoint& before, const OpenedModel& model) {
  for (const std::string& name : model.rewritten)
    if (!before.contains(name))
      throw RecipeError(
          "[recipe.check] {} would be a weight apart from the one that it shares, which a module in memory cannot "
          "keep; give it a weight of its own before",
          name);
}

}  // namespace layerpress::setup
