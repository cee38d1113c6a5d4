#include "layerpress/setup/assignment/recipe_rewrites.h"

#include <string>

#include "layerpress/rewrite/rewrite.h"
#include "layerpress/setup/opening/rewriting.h"

namespace layerpress::setup {

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
    if (changes.is_traced_again && !model.rewritten.empty())
      throw RecipeError(
          "[recipe.check] {} changes the model's graph; put it before other modifiers that change the model",
          modifier->type());
    apply(changes, model);
    for (const auto& [name, of] : changes.copies) model.rewritten.insert(name);
    for (const checkpoint::ComputedTensor& tensor : changes.computed) {
      model.rewritten_quantized.insert(model.quantized.extract(tensor.spec.name));
      model.rewritten.insert(tensor.spec.name);
    }
  }
}

}  // namespace layerpress::setup
