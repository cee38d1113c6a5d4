#include "layerpress/setup/assignment/group_sizes.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "layerpress/base/text.h"
#include "layerpress/gguf/mixture.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/quant/block_scheme.h"

namespace layerpress::setup {
namespace {

/// Modules whose columns the groups or blocks of a scheme do not divide, by scheme and columns.
using OddModules = std::map<std::pair<const quant::QuantizationScheme*, std::int64_t>, std::vector<std::string>>;

/// The values of a row that are stored together; 0: any number.
std::int64_t size_of(const quant::QuantizationScheme& scheme) {
  if (const gguf::BlockType* type = quant::block_type(scheme); type != nullptr) return type->block_values();
  return scheme.weights ? scheme.weights->group_size.value_or(0) : 0;
}

OddModules odd_modules(const graph::Graph& graph, const compression::Assignments& assignments) {
  OddModules odd;
  for (const auto& [node, assignment] : assignments.linears) {
    const std::int64_t size = size_of(*assignment.scheme);
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
    if (std::any_of(odd.begin(), odd.end(),
                    [scheme = assignment.scheme](const auto& entry) { return entry.first.first == scheme; }))
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

/// "W4A16 uses groups of 128".
std::string words_of(const quant::QuantizationScheme* scheme, const OneshotOptions& options,
                     const Modifiers& modifiers) {
  if (const gguf::BlockType* type = quant::block_type(*scheme); type != nullptr)
    return fmt::format("{} stores {} values together", type->name(), type->block_values());
  return fmt::format("{} uses groups of {}", name_of(scheme, options, modifiers), size_of(*scheme));
}

/// NVFP4 and MX formats have groups of one size.
bool chooses_size(const quant::QuantizationScheme& scheme) {
  return scheme.weights && scheme.weights->type == quant::NumberType::kInt &&
         scheme.weights->strategy == quant::Strategy::kGroup;
}

/// What llama.cpp takes in place of types whose blocks do not fit.
std::string advice_on_blocks(const OddModules& odd, const OneshotOptions& options) {
  if (!options.schemes.empty()) {
    std::vector<std::string> fitting;
    for (std::string name : options.schemes) {
      for (const auto& [place, modules] : odd)
        if (gguf::find_block_type(name) != nullptr) name = gguf::type_for_columns(name, place.second);
      if (std::find(fitting.begin(), fitting.end(), name) == fitting.end()) fitting.push_back(name);
    }
    return fmt::format("use --schemes {}, which fit", join(fitting, ","));
  }
  std::set<std::string> others;
  for (const auto& [place, modules] : odd) {
    const gguf::BlockType* type = quant::block_type(*place.first);
    if (type == nullptr) continue;
    others.insert(
        fmt::format("format: {} in place of {}", gguf::type_for_columns(type->name(), place.second), type->name()));
  }
  return fmt::format("give them a group with {}, or use a scheme such as Q4_K_M, which chooses types that fit",
                     join({others.begin(), others.end()}, " and "));
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
    columns[words_of(place.first, options, modifiers)].push_back(
        fmt::format("{} columns ({}, such as {})", place.second, counted(modules.size(), "linear"), modules.front()));
  std::vector<std::string> parts;
  for (const auto& [scheme, list] : columns)
    parts.push_back(fmt::format("{}, which do not divide {}", scheme, join(list, " and ")));
  if (std::any_of(odd.begin(), odd.end(), [](const auto& entry) { return quant::block_type(*entry.first.first); }))
    throw RecipeError("[recipe.check] {}; {}", join(parts), advice_on_blocks(odd, options));
  const bool chosen =
      std::all_of(odd.begin(), odd.end(), [](const auto& entry) { return chooses_size(*entry.first.first); });
  const auto size = chosen ? fitting_group_size(model.traced.graph, assignments, odd) : std::nullopt;
  throw RecipeError("[recipe.check] {}; {}", join(parts), advice(size, options));
}

}  // namespace layerpress::setup
