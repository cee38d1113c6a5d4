#include "layerpress/setup/rewriting.h"

#include <utility>

namespace layerpress::setup {

void apply(const rewrite::Changes& changes, OpenedModel& model) {
  static_cast<rewrite::Model&>(model) = rewrite::rewritten(std::move(model), changes);
  for (const auto& [name, of] : changes.copies)
    if (const auto quantized = model.quantized.find(of); quantized != model.quantized.end()) {
      source::StoredWeight copy = quantized->second;
      copy.name = name;
      model.quantized.insert_or_assign(name, std::move(copy));
    }
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
    apply(changes, model);
    for (const checkpoint::ComputedTensor& tensor : changes.computed) {
      model.quantized.erase(tensor.spec.name);
      model.rewritten.insert(tensor.spec.name);
    }
  }
}

}  // namespace layerpress::setup
