#include "layerpress/recipe/gguf_recipe.h"

#include <algorithm>

#include "layerpress/base/text.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/quant/scheme.h"

namespace layerpress::recipe {
namespace {

constexpr const char* kUsualMixture = "Q4_K_M";

std::string advice_on_mixtures(const std::string& scheme) {
  const std::vector<std::string> made = gguf::mixtures_of(scheme);
  if (made.empty()) return nearest_or_all(scheme, gguf::mixture_names());
  return fmt::format("{} is the type of single tensors; choose from {}", scheme, join(made));
}

/// Whether compressed-tensors has a scheme of this name.
bool is_preset(const std::string& name) {
  const std::vector<std::string> names = quant::preset_names();
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool asks_for_gguf(const OneshotOptions& options) { return has_ending(options.output, ".gguf"); }

bool divides_gguf(const OneshotOptions& options) {
  return options.max_shard_size != OneshotOptions().max_shard_size || options.is_given("max-shard-size");
}

OrderedJson gguf_arguments(const OneshotOptions& options) {
  const OneshotOptions defaults;
  const bool usual = options.scheme == defaults.scheme && !options.is_given("scheme");
  const std::string scheme = usual ? kUsualMixture : upper_case(options.scheme);
  if (!gguf::is_mixture(scheme))
    throw UsageError("[options] --scheme {}: a GGUF holds llama.cpp's types; {}", scheme, advice_on_mixtures(scheme));
  if (options.group_size != 0)
    throw UsageError("[options] --group-size: the types of {} fix their group sizes; leave --group-size out", scheme);
  if (options.targets != defaults.targets)
    throw UsageError("[options] --targets: {} chooses a type for every tensor; leave --targets out, or write a recipe",
                     scheme);
  OrderedJson arguments = {{"scheme", scheme}};
  if (options.ignore != defaults.ignore) arguments["ignore"] = options.ignore;
  if (!options.observer.empty()) arguments["weight_observer"] = options.observer;
  return arguments;
}

std::string mixture_of(const ModifierEntry& entry, bool for_gguf) {
  const bool quantizes = entry.type == "GPTQModifier" || entry.type == "QuantizationModifier";
  if (!quantizes || !entry.arguments.is_object() || !json_has(entry.arguments, "scheme") ||
      !entry.arguments["scheme"].is_string())
    return "";
  std::string name = entry.arguments["scheme"].get<std::string>();
  return gguf::is_mixture(name) && (for_gguf || !is_preset(name)) ? name : "";
}

OrderedJson with_groups_of_mixture(const ModifierEntry& entry, OrderedJson groups) {
  OrderedJson arguments = entry.arguments;
  if (json_has(arguments, "targets")) {
    const OrderedJson& targets = arguments["targets"];
    if (targets != "Linear" && targets != OrderedJson::array({"Linear"}))
      throw RecipeError(
          "[recipe.gguf] {}: {} chooses a type for every tensor; leave 'targets' out, or write config_groups with a "
          "'format' for each",
          entry.where, mixture_of(entry, /*for_gguf=*/true));
    arguments.erase("targets");
  }
  arguments.erase("scheme");
  arguments["config_groups"] = std::move(groups);
  return arguments;
}

bool names_mixture(const Recipe& recipe, bool for_gguf) {
  return std::any_of(recipe.modifiers.begin(), recipe.modifiers.end(),
                     [&](const ModifierEntry& entry) { return !mixture_of(entry, for_gguf).empty(); });
}

}  // namespace layerpress::recipe
