#include "layerpress/modifier/all_modifiers.h"

#include <map>

#include "layerpress/base/text.h"
#include "layerpress/modifier/pruning/reap.h"
#include "layerpress/modifier/quantizing/gptq.h"

namespace layerpress::modifier {

// Each is defined in the file with its name.
Kind autoround_modifier();
Kind awq_modifier();
Kind constant_pruning_modifier();
Kind error_propagation_modifier();
Kind logarithmic_equalization_modifier();
Kind magnitude_pruning_modifier();
Kind quantization_modifier();
Kind smoothquant_modifier();
Kind sparsegpt_modifier();
Kind spinquant_modifier();
Kind wanda_modifier();

namespace {

/// An argument of a wrong type is the recipe's fault.
std::unique_ptr<compression::Modifier> made(const Kind& kind, const OrderedJson& arguments, const std::string& where) {
  try {
    return kind.make(arguments, where);
  } catch (const CheckpointError& error) {
    throw RecipeError("{}", error.what());
  }
}

/// What to use instead of modifiers that are refused.
const std::map<std::string, std::string>& refusals() {
  static const std::map<std::string, std::string> kInstead = {
      {"MoNEPruningModifier",
       "only a patched vLLM loads experts that are replaced by constants; use REAPPruningModifier, which removes "
       "experts"},
      {"QADModifier",
       "it trains the weights; use GPTQModifier with --quality best, which aims at the original model's outputs, too"},
      {"QuIPModifier",
       "its rotations are computed while a model is served, which engines other than vLLM do not do; use "
       "SpinQuantModifier with "
       "rotations R1 and R2"}};
  return kInstead;
}

}  // namespace

/// A new modifier is its file, a line here and one above.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll = {
      autoround_modifier(),
      awq_modifier(),
      constant_pruning_modifier(),
      error_propagation_modifier(),
      gptq_modifier(),
      logarithmic_equalization_modifier(),
      magnitude_pruning_modifier(),
      quantization_modifier(),
      reap_modifier(),
      smoothquant_modifier(),
      sparsegpt_modifier(),
      spinquant_modifier(),
      wanda_modifier(),
  };
  return kAll;
}

std::vector<std::string> not_implemented() {
  std::vector<std::string> types;
  for (const auto& [type, instead] : refusals()) types.push_back(type);
  return types;
}

std::unique_ptr<compression::Modifier> make_modifier(const std::string& type, const OrderedJson& arguments,
                                                     const std::string& where) {
  std::vector<std::string> types;
  for (const Kind& kind : kinds()) {
    if (kind.type == type) return made(kind, arguments, where);
    types.push_back(kind.type);
  }
  if (const auto refused = refusals().find(type); refused != refusals().end())
    throw RecipeError("[recipe.modifier] {}: {} is not implemented; {}", where, type, refused->second);
  throw RecipeError("[recipe.modifier] {}: unknown modifier '{}'; {}", where, type, nearest_or_all(type, types));
}

}  // namespace layerpress::modifier
