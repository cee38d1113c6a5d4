#include "layerpress/setup/group_sizes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/graph/weight_matrix.h"

namespace layerpress::setup {
namespace {

/// Modules whose columns the group size of a scheme does not divide, by scheme and columns.
using OddModules = std::map<std::pair<const quant::QuantizationScheme*, std::int64_t>, std::vector<std::string>>;

OddModules odd_modules(const graph::Graph& graph, const compression::Assignments& assignments) {
  OddModules odd;
  for (const auto& [node, assignment] : assignments.linears) {
    if (!assignment.scheme->weights) continue;
    const std::int64_t size = assignment.scheme->weights->group_size.value_or(0);
    const std::int64_t columns = graph::weight_matrix(graph.nodes[node].operation).value().columns;
    if (size > 0 && columns % size != 0)
      odd[{assignment.scheme, columns}].push_back(graph.module_name(graph.nodes[node]));
  }
  return odd;
}

/// The largest usual size that divides the columns of all modules of these schemes. vLLM has kernels for these sizes.
std::optional<std::int64_t> fitting_group_size(const graph::Graph& graph, const compression::Assignments& assignments,
                                               const OddModules& odd) {
  std::int64_t divisor = 0;  // the greatest one of all columns
  for (const auto& [node, assignment] : assignments.linears)
    if (std::any_of(odd.begin(), odd.end(), [&](const auto& entry) { return entry.first.first == assignment.scheme; }))
      divisor = std::gcd(divisor, graph::weight_matrix(graph.nodes[node].operation).value().columns);
  for (const std::int64_t size : {128, 64, 32})
    if (divisor % size == 0) return size;
  return std::nullopt;
}

/// The scheme as the user named it.
std::string name_of(const quant::QuantizationScheme* scheme, const OneshotOptions& options,
                    const Modifiers& modifiers) {
  if (options.recipe.empty())
    return options.scheme + (options.group_size != 0 ? fmt::format(" with --group-size {}", options.group_size) : "");
  for (const auto& modifier : modifiers)
    if (const auto* quantizer = dynamic_cast<const compression::Quantizer*>(modifier.get()))
      for (const compression::Quantizer::SchemeGroup& group : quantizer->scheme_groups())
        if (group.scheme == scheme) return group.name;
  return "the scheme";
}

/// NVFP4 and MX formats have groups of one size.
bool chooses_size(const quant::QuantizationScheme& scheme) {
  return scheme.weights->type == quant::NumberType::kInt && scheme.weights->strategy == quant::Strategy::kGroup;
}

std::string advice(std::optional<std::int64_t> size, const OneshotOptions& options) {
  if (!size)
    return fmt::format("{} these linears, or use a scheme without groups, such as W8A8 or FP8_DYNAMIC",
                       options.recipe.empty() ? "leave out (--ignore)" : "ignore");
  if (!options.recipe.empty()) return fmt::format("write config_groups whose weights have group_size {}", *size);
  return fmt::format("{} --group-size {}", options.group_size == 0 ? "add" : "use", *size);
}

}  // namespace

void check_group_sizes(const OneshotOptions& options, const OpenedModel& model, const Modifiers& modifiers,
                       const compression::Assignments& assignments) {
  const OddModules odd = odd_modules(model.traced.graph, assignments);
  if (odd.empty()) return;
  std::map<std::string, std::vector<std::string>> columns;  // that a scheme's groups do not divide
  for (const auto& [place, modules] : odd)
    columns[fmt::format("{} uses groups of {}", name_of(place.first, options, modifiers),
                        *place.first->weights->group_size)]
        .push_back(fmt::format("{} columns ({} linear{}, such as {})", place.second, modules.size(),
                               modules.size() == 1 ? "" : "s", modules.front()));
  std::vector<std::string> parts;
  for (const auto& [scheme, list] : columns)
    parts.push_back(fmt::format("{}, which do not divide {}", scheme, join(list, " and ")));
  const bool chosen =
      std::all_of(odd.begin(), odd.end(), [](const auto& entry) { return chooses_size(*entry.first.first); });
  const auto size = chosen ? fitting_group_size(model.traced.graph, assignments, odd) : std::nullopt;
  throw RecipeError("[recipe.check] {}; {}", join(parts), advice(size, options));
}

}  // namespace layerpress::setup
