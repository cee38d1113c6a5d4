#include "layerpress/modifier/all_modifiers.h"

#include <functional>
#include <map>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/modifier/arguments/lifecycle_arguments.h"
#include "layerpress/modifier/pruning/magnitude.h"
#include "layerpress/modifier/pruning/reap.h"
#include "layerpress/modifier/pruning/sparsegpt.h"
#include "layerpress/modifier/pruning/wanda.h"
#include "layerpress/modifier/quantizing/autoround.h"
#include "layerpress/modifier/quantizing/block_quantizer.h"
#include "layerpress/modifier/quantizing/gptq.h"
#include "layerpress/modifier/quantizing/quantization.h"
#include "layerpress/modifier/quantizing/quantizing_modifier.h"
#include "layerpress/modifier/rewrites/awq.h"
#include "layerpress/modifier/rewrites/smoothquant.h"
#include "layerpress/modifier/rewrites/spinquant.h"

namespace layerpress::modifier {
namespace {

using Factory = std::function<std::unique_ptr<compression::Modifier>(const OrderedJson&, const std::string&)>;

/// A kind of modifier.
struct Kind {
  std::string type;
  Factory make;
  std::vector<Argument> arguments;
};

/// The arguments of a modifier that quantizes.
std::vector<Argument> with_shared(std::vector<Argument> own) {
  const std::vector<Argument>& shared = QuantizingModifier::shared_arguments();
  own.insert(own.begin(), shared.begin(), shared.end());
  return own;
}

std::unique_ptr<compression::Modifier> make_gptq(const OrderedJson& arguments, const std::string& where) {
  if (names_block_types(arguments)) return make_block_quantizer(arguments, where, BlockRounding::kGptq);
  return make_gptq_modifier(arguments, where);
}

std::unique_ptr<compression::Modifier> make_quantization(const OrderedJson& arguments, const std::string& where) {
  if (names_block_types(arguments)) return make_block_quantizer(arguments, where, BlockRounding::kNearest);
  return make_quantization_modifier(arguments, where);
}

/// A new modifier is its files and a line here.
const std::vector<Kind>& kinds() {
  static const std::vector<Kind> kAll = {
      {"AutoRoundModifier", make_autoround_modifier, with_shared(autoround_arguments())},
      {"AWQModifier", make_awq_modifier, awq_arguments()},
      {"ConstantPruningModifier", make_constant_pruning_modifier, constant_pruning_arguments()},
      {"GPTQModifier", make_gptq, with_shared(gptq_arguments())},
      {"LogarithmicEqualizationModifier", make_logarithmic_equalization_modifier, smoothquant_arguments()},
      {"MagnitudePruningModifier", make_magnitude_modifier, magnitude_arguments()},
      {"QuantizationModifier", make_quantization, with_shared({})},
      {ExpertPruning::kType, make_reap_modifier, reap_arguments()},
      {"SmoothQuantModifier", make_smoothquant_modifier, smoothquant_arguments()},
      {"SparseGPTModifier", make_sparsegpt_modifier, sparsegpt_arguments()},
      {"SpinQuantModifier", make_spinquant_modifier, spinquant_arguments()},
      {"WandaPruningModifier", make_wanda_modifier, wanda_arguments()},
  };
  return kAll;
}

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

std::vector<std::string> not_implemented() {
  std::vector<std::string> types;
  for (const auto& [type, instead] : refusals()) types.push_back(type);
  return types;
}

std::vector<Argument> arguments_of(const std::string& type) {
  for (const Kind& kind : kinds()) {
    if (kind.type != type) continue;
    std::vector<Argument> arguments = kind.arguments;
    for (Argument& argument : lifecycle_arguments()) arguments.push_back(std::move(argument));
    return arguments;
  }
  throw InternalError("[modifier] unknown modifier {}", type);
}

std::vector<std::string> modifier_types() {
  std::vector<std::string> types;
  for (const Kind& kind : kinds()) types.push_back(kind.type);
  return types;
}

std::unique_ptr<compression::Modifier> make_modifier(const std::string& type, const OrderedJson& arguments,
                                                     const std::string& where) {
  for (const Kind& kind : kinds())
    if (kind.type == type) return made(kind, arguments, where);
  if (const auto refused = refusals().find(type); refused != refusals().end())
    throw RecipeError("[recipe.modifier] {}: {} is not implemented; {}", where, type, refused->second);
  throw RecipeError("[recipe.modifier] {}: unknown modifier '{}'; {}", where, type,
                    nearest_or_all(type, modifier_types()));
}

}  // namespace layerpress::modifier
