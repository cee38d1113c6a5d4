#include "layerpress/modifier/rewrites/scale_mappings.h"

#include <algorithm>

#include "layerpress/base/error.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {
namespace {

/// The balance layers and the smooth layer.
std::pair<Json, Json> parts_of(const Json& entry, const std::string& where) {
  if (entry.is_array() && entry.size() == 2) return {entry[0], entry[1]};
  if (!entry.is_object() || !entry.contains("smooth_layer") || !entry.contains("balance_layers"))
    throw RecipeError(
        "[recipe.modifier] {}: a mapping is [[balance layers], smooth layer], or {{smooth_layer: ..., balance_layers: "
        "[...]}}",
        where);
  for (const auto& [key, value] : entry.items())
    if (key != "smooth_layer" && key != "balance_layers" && key != "activation_hook_target")
      throw RecipeError("[recipe.modifier] {}: unknown key '{}'", where, key);
  return {entry["balance_layers"], entry["smooth_layer"]};
}

}  // namespace

std::vector<ScaleMapping> read_scale_mappings(const Json& mappings, const std::string& where) {
  if (!mappings.is_array() || mappings.empty())
    throw RecipeError("[recipe.modifier] {}: mappings must be a list of [[balance layers], smooth layer]", where);
  std::vector<ScaleMapping> read;
  for (std::size_t i = 0; i < mappings.size(); ++i) {
    const std::string place = fmt::format("{}.mappings[{}]", where, i);
    const auto [balance, smooth] = parts_of(mappings[i], place);
    read.push_back({place, {names_in(balance, place), place}, {names_in(smooth, place), place}});
  }
  return read;
}

bool names_hook_target(const Json& mappings) {
  return std::any_of(mappings.begin(), mappings.end(),
                     [](const Json& entry) { return entry.is_object() && json_has(entry, "activation_hook_target"); });
}

void require_modules(const graph::Graph& graph, const ScaleMapping& mapping) {
  bool smooth = false, balance = false;
  for (graph::NodeId n = 0; n < static_cast<graph::NodeId>(graph.nodes.size()); ++n) {
    if (graph::weights_of(graph.nodes[n].operation).empty()) continue;
    const quant::ModuleName module = module_of(graph, n);
    smooth = mapping.smooth.matches(module) || smooth;
    balance = mapping.balance.matches(module) || balance;
  }
  if (!smooth || !balance)
    throw RecipeError("[recipe.check] {}: its {} no module of the model; correct or remove it", mapping.where,
                      smooth ? "balance layers match" : "smooth layer matches");
}

std::vector<compression::Modifier::ListEntry> unmatched_in(const std::vector<ScaleMapping>& mappings) {
  std::vector<compression::Modifier::ListEntry> entries;
  for (const ScaleMapping& mapping : mappings)
    for (const quant::TargetList* list : {&mapping.balance, &mapping.smooth})
      for (const std::string& entry : list->unmatched()) entries.push_back({mapping.where, entry});
  return entries;
}

quant::ModuleName module_of(const graph::Graph& graph, graph::NodeId n) {
  return {graph.module_name(graph.nodes[n]), {graph.modules[graph.nodes[n].module].class_name}};
}

}  // namespace layerpress::modifier
