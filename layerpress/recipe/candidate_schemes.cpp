#include "layerpress/recipe/candidate_schemes.h"

#include <algorithm>

#include "layerpress/base/text.h"
#include "layerpress/gguf/blocks/block_type.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/quant/scheme.h"
#include "layerpress/recipe/gguf_recipe.h"
#include "layerpress/recipe/recipe_of_options.h"
#include "layerpress/recipe/standard_recipe.h"

namespace layerpress::recipe {
namespace {

void check_preset(const std::string& name, bool takes_none) {
  if (is_standard_recipe(name))
    throw UsageError("[options] --schemes: {} gives modules different schemes; name these one by one", name);
  try {
    if (quant::preset_scheme(name).weights) return;
    throw UsageError("[options] --schemes: {} leaves weights unquantized; {}", name,
                     takes_none ? fmt::format("write {}", kLeftAlone) : "leave it out");
  } catch (const RecipeError& error) {
    if (gguf::is_mixture(upper_case(name)) || gguf::find_block_type(upper_case(name)) != nullptr)
      throw UsageError(
          "[options] --schemes: {} is of GGUF files; oneshot chooses among their types, such as Q4_K and Q5_0, with an "
          "--output that ends in .gguf",
          name);
    const std::string text = error.what();  // its place is the option
    throw UsageError("[options] --schemes: {}{}", text.substr(text.find("] ") + 2),
                     takes_none ? fmt::format("; {} leaves a linear as it is", kLeftAlone) : "");
  }
}

void check_block_type(const std::string& name) {
  if (gguf::find_block_type(name) != nullptr) return;
  throw UsageError("[options] --schemes: {} is no type of llama.cpp's for one tensor; {}", name,
                   nearest_or_all(name, gguf::block_type_names()));
}

/// A group of config_groups.
OrderedJson group_of(const std::string& name, const std::vector<std::string>& targets, const OneshotOptions& options) {
  OrderedJson group;
  group["targets"] = targets;
  if (asks_for_gguf(options)) {
    group["format"] = name;
    return group;
  }
  quant::QuantizationScheme scheme = quant::preset_scheme(name);
  if (options.group_size != 0 && has_free_groups(name, options)) scheme.weights->group_size = options.group_size;
  group["weights"] = quant::to_json(*scheme.weights);
  if (scheme.input_activations) group["input_activations"] = quant::to_json(*scheme.input_activations);
  return group;
}

}  // namespace

void check_candidates(const OneshotOptions& options, const std::vector<std::string>& names, bool takes_none) {
  for (const std::string& name : names) {
    if (std::count_if(names.begin(), names.end(),
                      [&](const std::string& other) { return upper_case(other) == upper_case(name); }) > 1)
      throw UsageError("[options] --schemes: {} is named twice; name it once", name);
    if (takes_none && name == kLeftAlone) continue;
    if (asks_for_gguf(options))
      check_block_type(name);
    else
      check_preset(name, takes_none);
  }
  check_group_size(options);
  const auto is_free = [&](const std::string& name) { return has_free_groups(name, options); };
  if (options.group_size != 0 && std::none_of(names.begin(), names.end(), is_free))
    throw UsageError("[options] --group-size: no scheme of --schemes lets you choose it; leave it out");
}

bool has_free_groups(const std::string& name, const OneshotOptions& options) {
  if (name == kLeftAlone || asks_for_gguf(options)) return false;
  const auto weights = quant::preset_scheme(name).weights;
  return weights && weights->strategy == quant::Strategy::kGroup && weights->type == quant::NumberType::kInt;
}

Recipe rounding_to(const std::string& name, const OneshotOptions& options) {
  if (asks_for_gguf(options)) {
    ModifierEntry entry{.type = "QuantizationModifier", .where = "options"};
    entry.arguments["ignore"] = options.ignore;
    entry.arguments["config_groups"]["group_0"] = group_of(name, options.targets, options);
    return {{std::move(entry)}};
  }
  OneshotOptions rounding;
  rounding.algorithm = "rtn";
  rounding.scheme = name;
  rounding.targets = options.targets, rounding.ignore = options.ignore;
  if (has_free_groups(name, options)) rounding.group_size = options.group_size;
  return recipe_of(rounding);
}

Recipe mixed_recipe(const std::vector<CandidateTargets>& candidates, const OneshotOptions& options,
                    const CandidateTargets& vocabulary) {
  ModifierEntry entry{.type = options.algorithm == "rtn" ? "QuantizationModifier" : "GPTQModifier", .where = "options"};
  if (vocabulary.name.empty()) entry.arguments["ignore"] = options.ignore;
  if (!options.observer.empty()) entry.arguments["weight_observer"] = options.observer;
  for (const CandidateTargets& candidate : candidates) {
    const std::string group = fmt::format("group_{}", entry.arguments["config_groups"].size());
    entry.arguments["config_groups"][group] = group_of(candidate.name, candidate.targets, options);
  }
  if (!vocabulary.name.empty())
    entry.arguments["config_groups"]["vocabulary"] = group_of(vocabulary.name, vocabulary.targets, options);
  return {{std::move(entry)}};
}

}  // namespace layerpress::recipe
