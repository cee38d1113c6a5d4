#include "layerpress/rewrite/rewrite.h"

#include <utility>
#include <variant>

namespace layerpress::rewrite {

Model rewritten(Model model, const Changes& changes) {
  for (const std::string& name : changes.removed) model.checkpoint = model.checkpoint->without(name);
  for (const auto& [name, of] : changes.copies) model.checkpoint = model.checkpoint->with_copy(name, of);
  if (!changes.computed.empty()) model.checkpoint = model.checkpoint->with_computed(changes.computed);
  if (!changes.config.empty()) model.checkpoint = model.checkpoint->with_config(changes.config);
  for (const auto& [n, weight] : changes.linears)
    std::get<graph::Linear>(model.traced.graph.nodes[n].operation).weight = weight;
  return model;
}

}  // namespace layerpress::rewrite
