#include "layerpress/rewrite/rewrite.h"

#include <set>
#include <utility>

#include "layerpress/base/error.h"
#include "layerpress/base/text.h"
#include "layerpress/model/blocks/expert_blocks.h"

namespace layerpress::rewrite {
namespace {

/// Gives a changed model, whose experts lie one by one, the stacked tensors of the model before, in the form that they had, for
/// the experts that are left.
void take_stacked(const std::vector<std::vector<model::StackedTensor>>& before, Model& changed) {
  std::set<std::string> lists;
  changed.traced.stacked_tensors = before;
  for (std::vector<model::StackedTensor>& layer : changed.traced.stacked_tensors)
    for (model::StackedTensor& stacked : layer) {
      std::erase_if(stacked.members, [&](const auto& of) { return !changed.checkpoint->contains(of.front()); });
      stacked.shape[0] = static_cast<std::int64_t>(stacked.members.size());
      if (stacked.shape.size() == 3) lists.insert(model::list_of_experts(stacked));
    }
  std::erase_if(changed.traced.fused_tensors,
                [&](const checkpoint::FusedTensor& fused) { return lists.count(parent_name(fused.name)) != 0; });
}

}  // namespace

Model rewritten(Model model, const Changes& changes) {
  if (!changes.copies.empty()) model.checkpoint = model.checkpoint->with_copies(changes.copies);
  if (!changes.removed.empty()) model.checkpoint = model.checkpoint->without(changes.removed);
  if (!changes.computed.empty()) model.checkpoint = model.checkpoint->with_computed(changes.computed);
  if (!changes.config.empty()) model.checkpoint = model.checkpoint->with_config(changes.config);
  if (changes.is_traced_again) {
    const std::vector<std::vector<model::StackedTensor>> stacked = std::move(model.traced.stacked_tensors);
    try {
      model.traced = model.trace(*model.checkpoint);
      take_stacked(stacked, model);
      model::check_weights(model.traced.graph, *model.checkpoint);
    } catch (const CheckpointError& error) {
      throw RecipeError("[recipe.check] {}, but the architecture does not take the rest, so leave that out ({})",
                        changes.text, error.what());
    }
  }
  for (const auto& [n, operation] : changes.operations) model.traced.graph.nodes[n].operation = operation;
  return model;
}

Json untied_config(const Json& config) {
  Json change = {{"tie_word_embeddings", false}};
  if (json_has(config, "text_config") && config["text_config"].is_object())
    change["text_config"]["tie_word_embeddings"] = false;
  return change;
}

}  // namespace layerpress::rewrite
