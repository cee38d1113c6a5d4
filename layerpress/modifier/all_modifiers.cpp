#include "layerpress/modifier/all_modifiers.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/modifier/gptq.h"
#include "layerpress/modifier/quantization.h"
#include "layerpress/modifier/smoothquant.h"

namespace layerpress::modifier {
namespace {

using Factory = std::function<std::unique_ptr<compression::Modifier>(const OrderedJson&, const std::string&)>;

/// A new modifier is its files and a line here.
const std::vector<std::pair<std::string, Factory>>& factories() {
  static const std::vector<std::pair<std::string, Factory>> kAll = {
      {"GPTQModifier",
       [](const OrderedJson& arguments, const std::string& where) { return make_gptq_modifier(arguments, where); }},
      {"QuantizationModifier", make_quantization_modifier},
      {"SmoothQuantModifier", make_smoothquant_modifier},
  };
  return kAll;
}

/// Modifiers in LLM Compressor's recipes that are not implemented yet.
const std::vector<std::string>& not_implemented() {
  static const std::vector<std::string> kNames = {"AWQModifier",
                                                  "AutoRoundModifier",
                                                  "SpinQuantModifier",
                                                  "QuIPModifier",
                                                  "SparseGPTModifier",
                                                  "WandaPruningModifier",
                                                  "MagnitudePruningModifier",
                                                  "ConstantPruningModifier",
                                                  "LogarithmicEqualizationModifier",
                                                  "REAPModifier"};
  return kNames;
}

}  // namespace

std::vector<std::string> modifier_types() {
  std::vector<std::string> types;
  for (const auto& [type, factory] : factories()) types.push_back(type);
  return types;
}

std::unique_ptr<compression::Modifier> make_modifier(const std::string& type, const OrderedJson& arguments,
                                                     const std::string& where) {
  for (const auto& [known, factory] : factories())
    if (known == type) return factory(arguments, where);
  const std::vector<std::string> implemented = modifier_types();
  const auto& later = not_implemented();
  if (std::find(later.begin(), later.end(), type) != later.end())
    throw RecipeError("[recipe.modifier] {}: {} is not implemented yet; implemented: {}", where, type,
                      join(implemented));
  const std::string nearest = nearest_name(type, implemented);
  throw RecipeError("[recipe.modifier] {}: unknown modifier '{}'{}; implemented: {}", where, type,
                    nearest.empty() ? "" : fmt::format(" (did you mean {}?)", nearest), join(implemented));
}

}  // namespace layerpress::modifier
