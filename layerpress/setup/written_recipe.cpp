#include "layerpress/setup/written_recipe.h"

#include <algorithm>
#include <array>
#include <memory>

#include "layerpress/compression/modifier.h"
#include "layerpress/quant/observer.h"
#include "layerpress/recipe/inherited_schemes.h"
#include "layerpress/recipe/separate_scaling.h"

namespace layerpress::setup {
namespace {

using Groups = std::vector<compression::Quantizer::SchemeGroup>;

/// The observer as LLM Compressor names it; nothing if it has none like it.
std::optional<std::string> known_observer(const quant::QuantizationArgs& weights) {
  if (!weights.observer) return std::nullopt;
  static const std::array<std::string, 2> kOwn = {"squared_error", "gptq"};
  if (std::find(kOwn.begin(), kOwn.end(), *weights.observer) != kOwn.end()) return std::nullopt;
  return quant::portable_observer(*weights.observer);
}

/// Says in the description of a group's weights how they were compressed.
void complete_group(const quant::QuantizationArgs& chosen, OrderedJson& weights) {
  if (const auto observer = known_observer(chosen))
    weights["observer"] = *observer;
  else if (!json_has(weights, "observer"))
    weights.erase("observer");
  if (chosen.actorder)
    weights["actorder"] = *chosen.actorder;
  else
    weights.erase("actorder");
}

/// The same for a modifier whose groups are presets, which have one observer and one order.
void complete_presets(const quant::QuantizationArgs& chosen, OrderedJson& arguments) {
  if (!json_has(arguments, "observer") && !json_has(arguments, "weight_observer"))
    if (const auto observer = known_observer(chosen)) arguments["weight_observer"] = *observer;
  if (chosen.actorder && !arguments.contains("actorder")) arguments["actorder"] = *chosen.actorder;
}

/// Whether the groups that have weights agree in what the modifier would say for all of them.
bool agree(const Groups& groups) {
  const auto differs = [](const auto& one, const auto& other) {
    return one.scheme->weights && other.scheme->weights &&
           (one.scheme->weights->observer != other.scheme->weights->observer ||
            one.scheme->weights->actorder != other.scheme->weights->actorder);
  };
  return std::adjacent_find(groups.begin(), groups.end(), differs) == groups.end();
}

void complete(const Groups& groups, OrderedJson& arguments) {
  if (!json_has(arguments, "config_groups")) {
    const bool any = !groups.empty() && groups.front().scheme->weights;
    if (any && agree(groups)) complete_presets(*groups.front().scheme->weights, arguments);
    return;
  }
  // What the modifier says for all groups is in each of them now.
  OrderedJson& described = arguments["config_groups"];
  for (const auto& [name, scheme] : groups)
    if (scheme->weights && described.contains(name) && json_has(described[name], "weights"))
      complete_group(*scheme->weights, described[name]["weights"]);
}

}  // namespace

recipe::Recipe written_recipe(const recipe::Recipe& recipe, const Modifiers& modifiers) {
  recipe::Recipe written = recipe::with_inherited_schemes(recipe::with_separate_scaling(recipe));
  for (std::size_t i = 0; i < written.modifiers.size(); ++i)
    if (const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifiers[i].get()))
      complete(quantizer->scheme_groups(), written.modifiers[i].arguments);
  return written;
}

}  // namespace layerpress::setup
