#include "layerpress/setup/assignment/statistic_checks.h"

#include <algorithm>

#include "layerpress/schedule/value_statistics.h"

namespace layerpress::setup {
namespace {

using Statistics = std::vector<compression::StatisticPtr>;

/// The tokens of an expert do not say which samples they belong to.
void check_rows(const graph::Graph& graph, const compression::StoredParameters& stored) {
  for (const graph::ValueId value : *stored.values)
    if (graph.values[value].rows == graph::Rows::kSelected && stored.statistic->looks_at_samples())
      throw RecipeError(
          "[recipe.check] {}: its input observer averages over whole samples, but some tokens of a sample do not reach "
          "it; write `observer: static_minmax` beside the `num_bits` of input_activations",
          graph.module_name(graph.nodes[stored.reader]));
}

void check_division(const graph::Graph& graph, const compression::PlannedTransform& planned,
                    const schedule::ValueStatistics& wanted) {
  for (const graph::ScaledValue& scaled : planned.site.place.values) {
    const Statistics& statistics = wanted.of(scaled.value);
    if (std::any_of(statistics.begin(), statistics.end(), [](const auto& own) { return !own->follows_division(); }))
      throw RecipeError(
          "[recipe.check] {} changes the output of {}, from which an observer averages over samples; write `observer: "
          "static_minmax` beside the `num_bits` of input_activations",
          planned.transform->type(), graph.module_name(graph.nodes[planned.site.place.source]));
  }
}

}  // namespace

void check_statistics(const graph::Graph& graph, const compression::Assignments& assignments) {
  const schedule::ValueStatistics wanted(graph, assignments);
  for (const compression::StoredParameters& stored : assignments.stored) check_rows(graph, stored);
  for (const compression::PlannedTransform& planned : assignments.transforms) check_division(graph, planned, wanted);
}

}  // namespace layerpress::setup
