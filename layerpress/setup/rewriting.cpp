#include "layerpress/setup/rewriting.h"

#include <map>
#include <string>
#include <utility>

namespace layerpress::setup {

void apply(const rewrite::Changes& changes, OpenedModel& model) {
  rewrite::Model& base = model;
  base = rewrite::rewritten(std::move(base), changes);
  std::map<std::string, source::StoredWeight> copies;
  for (const auto& [name, of] : changes.copies)
    if (const auto quantized = model.quantized.find(of); quantized != model.quantized.end()) {
      copies.insert_or_assign(name, quantized->second).first->second.name = name;
    }
  for (const auto& [name, of] : changes.copies) model.quantized.erase(name);
  for (auto& [name, copy] : copies) model.quantized.insert_or_assign(name, std::move(copy));
  for (const std::string& name : changes.removed) model.quantized.erase(name);
  if (changes.config.contains("tie_word_embeddings")) model.traced.tied_head = changes.config["tie_word_embeddings"];
  if (!changes.text.empty()) model.rewrites.push_back(changes.text);
}

void apply_rewrites(const Modifiers& modifiers, OpenedModel& model) {
  std::string earlier;  // a modifier that is no rewrite
  for (const auto& modifier : modifiers) {
    const auto* rewrite = dynamic_cast<const rewrite::Rewrite*>(modifier.get());
    if (rewrite == nullptr) {
      earlier = modifier->type();
      continue;
    }
    if (!earlier.empty())
      throw RecipeError("[recipe.check] {} changes the model before {} begins; put {} first", modifier->type(), earlier,
                        modifier->type());
    const rewrite::Changes changes = rewrite->changes(model);
    if (changes.is_traced_again && !model.rewrites.empty())
      throw RecipeError(
          "[recipe.check] {} changes the model's graph; put it before other modifiers that change the model",
          modifier->type());
    apply(changes, model);
    for (const auto& [name, of] : changes.copies) model.rewritten.insert(name);
    for (const checkpoint::ComputedTensor& tensor : changes.computed) {
      model.quantized.erase(tensor.spec.name);
      model.rewritten.insert(tensor.spec.name);
    }
  }
}

}  // namespace layerpress::setup
