#include "layerpress/setup/opening/stored_head.h"

#include <ATen/ATen.h>

#include <string>
#include <variant>

namespace layerpress::setup {
namespace {

constexpr const char* kKept = ": the head keeps its own weight, as in transformers";

}  // namespace

rewrite::Changes own_stored_heads(const rewrite::Model& model) {
  const graph::Graph& graph = model.traced.graph;
  rewrite::Changes changes;
  if (model.traced.own_head) {
    changes.config = rewrite::untied_config(model.checkpoint->config());
    changes.text = "the stored head differs from the embedding, to which config.json ties it" + std::string(kKept);
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
    changes.linears[n] = own;
    changes.config = rewrite::untied_config(model.checkpoint->config());
    changes.text = own + " differs from " + linear->weight + ", to which config.json ties it" + kKept;
  }
  return changes;
}

}  // namespace layerpress::setup
