#include "layerpress/rewrite/rewrite.h"

#include <utility>
#include <variant>

namespace layerpress::rewrite {

Model rewritten(Model model, const Changes& changes) {
  if (!changes.copies.empty()) model.checkpoint = model.checkpoint->with_copies(changes.copies);
  if (!changes.removed.empty()) model.checkpoint = model.checkpoint->without(changes.removed);
  if (!changes.computed.empty()) model.checkpoint = model.checkpoint->with_computed(changes.computed);
  if (!changes.config.empty()) model.checkpoint = model.checkpoint->with_config(changes.config);
  if (changes.is_traced_again) {
    model.traced = model.trace(*model.checkpoint);
    model::check_weights(model.traced.graph, *model.checkpoint);
  }
  for (const auto& [n, weight] : changes.linears)
    std::get<graph::Linear>(model.traced.graph.nodes[n].operation).weight = weight;
  return model;
}

Json untied_config(const Json& config) {
  Json change = {{"tie_word_embeddings", false}};
  if (json_has(config, "text_config") && config["text_config"].is_object())
    change["text_config"]["tie_word_embeddings"] = false;
  return change;
}

}  // namespace layerpress::rewrite
