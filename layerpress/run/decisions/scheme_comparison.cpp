#include "layerpress/run/decisions/scheme_comparison.h"

#include <c10/util/accumulate.h>

#include <memory>
#include <utility>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/modifier/sensitivity.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/quant/rounding/value_parameters.h"
#include "layerpress/recipe/candidate_schemes.h"
#include "layerpress/setup/assignment/group_sizes.h"

namespace layerpress::run {
namespace {

/// The candidates as the recipe of a run that rounds to each, which is part of what ranks agree on.
recipe::Recipe rounding_recipe(const OneshotOptions& options, const std::vector<std::string>& names) {
  recipe::Recipe recipe;
  for (const std::string& name : names) {
    const recipe::Recipe own = recipe::rounding_to(name, options);
    recipe.modifiers.insert(recipe.modifiers.end(), own.modifiers.begin(), own.modifiers.end());
  }
  return recipe;
}

std::unique_ptr<modifier::Sensitivity> sensitivity_of(const recipe::Recipe& recipe, bool asks_what_gptq_leaves) {
  modifier::Sensitivity::Candidates candidates;
  for (auto& modifier : setup::make_modifiers(recipe))
    candidates.emplace_back(dynamic_cast<const compression::Quantizer*>(modifier.release()));
  return std::make_unique<modifier::Sensitivity>(std::move(candidates), asks_what_gptq_leaves);
}

void check_sizes(const OneshotOptions& options, const std::vector<std::string>& names,
                 const std::vector<const quant::QuantizationScheme*>& schemes, const setup::RunSetup& setup) {
  for (std::size_t c = 0; c < names.size(); ++c) {
    OneshotOptions rounding = options;
    rounding.scheme = names[c];
    if (!recipe::has_free_groups(names[c], options)) rounding.group_size = 0;
    compression::Assignments rounded;
    rounded.linears = setup.assignments.linears;
    for (auto& [node, assignment] : rounded.linears) assignment.scheme = schemes[c];
    setup::check_group_sizes(rounding, setup.model, setup.modifiers, rounded);
  }
}

}  // namespace

SchemeComparison set_up_comparison(Rank& rank, const std::vector<std::string>& names, bool asks_what_gptq_leaves) {
  recipe::Recipe recipe = rounding_recipe(rank.options, names);
  std::unique_ptr<modifier::Sensitivity> sensitivity = sensitivity_of(recipe, asks_what_gptq_leaves);
  SchemeComparison comparison;
  comparison.schemes = sensitivity->schemes();
  setup::Modifiers modifiers;
  modifiers.push_back(std::move(sensitivity));
  setup::RunSetup setup =
      setup::set_up(rank.options, std::move(recipe), std::move(modifiers), rank.group, rank.control);
  check_sizes(rank.options, names, comparison.schemes, setup);
  comparison.settled = settle(std::move(setup), rank.options, rank.group, rank.control);
  return comparison;
}

MeasuredLinears linears_of(const setup::RunSetup& setup) {
  MeasuredLinears linears;
  const graph::Graph& graph = setup.model.traced.graph;
  for (const auto& [n, assignment] : setup.assignments.linears) {
    const graph::WeightMatrix matrix = graph::weight_matrix(graph.nodes[n].operation).value();
    linears[graph.module_name(graph.nodes[n])] = {matrix.weight, {matrix.rows, matrix.columns, assignment.scale_dtype}};
  }
  return linears;
}

std::vector<quant::NamedTensorSpec> stored_parts(const quant::QuantizationScheme& scheme,
                                                 const compression::LinearShape& linear) {
  std::vector<quant::NamedTensorSpec> parts =
      quant::compressed_layout(scheme, linear.rows, linear.columns, linear.dtype);
  if (quant::has_stored_inputs(scheme))
    for (quant::NamedTensorSpec& part : quant::parameter_layout({"input", &*scheme.input_activations, linear.dtype}))
      parts.push_back(std::move(part));
  return parts;
}

std::uint64_t stored_bytes(const quant::QuantizationScheme& scheme, const compression::LinearShape& linear) {
  std::uint64_t bytes = 0;
  for (const quant::NamedTensorSpec& part : stored_parts(scheme, linear))
    bytes += static_cast<std::uint64_t>(c10::multiply_integers(part.shape)) * c10::elementSize(part.dtype);
  return bytes;
}

}  // namespace layerpress::run
