#include "layerpress/setup/assignment/transform_sites.h"

#include <algorithm>
#include <map>
#include <utility>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/schedule/trial_stages.h"
#include "layerpress/schedule/value_statistics.h"

namespace layerpress::setup {
namespace {

/// The positions of modifiers in the recipe.
std::map<const compression::Modifier*, std::size_t> places_of(const Modifiers& modifiers) {
  std::map<const compression::Modifier*, std::size_t> places;
  for (const auto& modifier : modifiers) places.emplace(modifier.get(), places.size());
  return places;
}

/// A weight cannot be changed after it was quantized.
void require_before_quantizers(const graph::Graph& graph, const compression::PlannedTransform& planned,
                               const compression::Assignments& assignments,
                               const std::map<const compression::Modifier*, std::size_t>& places) {
  const std::vector<std::string> names = planned.site.place.parameters(graph);
  for (const auto& [n, assignment] : assignments.linears)
    if (std::find(names.begin(), names.end(), graph::weight_matrix(graph.nodes[n].operation).value().weight) !=
            names.end() &&
        places.at(assignment.first) < places.at(planned.transform))
      throw RecipeError("[recipe.check] {} changes {}, which {} has {} before; put {} first", planned.transform->type(),
                        graph.module_name(graph.nodes[n]), assignment.first->type(),
                        assignment.first == assignment.encoding ? "quantized" : "edited", planned.transform->type());
}

}  // namespace

void plan_transforms(const graph::Graph& graph, const Modifiers& modifiers, compression::Assignments& assignments) {
  const auto places = places_of(modifiers);
  const std::vector<std::vector<graph::NodeId>> consumers = graph.consumers();
  const compression::SchemeOf scheme_of = [&](graph::NodeId n) { return assignments.scheme_of(n); };
  for (const auto& modifier : modifiers) {
    const auto* transform = dynamic_cast<const compression::Transform*>(modifier.get());
    if (transform == nullptr) continue;
    for (compression::TransformSite& site : transform->sites(graph, scheme_of)) {
      if (site.candidates > 0) site.trial_outputs = schedule::trial_outputs(graph, consumers, site.balanced);
      assignments.transforms.push_back({transform, std::move(site)});
      require_before_quantizers(graph, assignments.transforms.back(), assignments, places);
    }
  }
}

std::vector<graph::Subgraph> joined_for_transforms(const graph::Graph& graph, std::vector<graph::Subgraph> subgraphs,
                                                   const compression::Assignments& assignments) {
  std::map<std::string, std::pair<std::size_t, std::size_t>>
      uses;  // the first and the last subgraph that read a weight
  std::vector<std::size_t> subgraph_of(graph.nodes.size(), 0);
  for (std::size_t s = 0; s < subgraphs.size(); ++s)
    for (const graph::NodeId n : subgraphs[s].nodes) {
      subgraph_of[n] = s;
      for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation))
        uses.emplace(use.name, std::pair(s, s)).first->second.second = s;
    }
  std::vector<std::size_t> reach(subgraphs.size());  // the last subgraph to be joined with this one
  for (std::size_t s = 0; s < reach.size(); ++s) reach[s] = s;
  for (const compression::PlannedTransform& planned : assignments.transforms) {
    std::size_t first = subgraphs.size(), last = 0;
    for (const std::string& name : planned.site.place.parameters(graph)) {
      first = std::min(first, uses.at(name).first);
      last = std::max(last, uses.at(name).second);
    }
    for (const graph::ValueId value : planned.site.trial_outputs)  // a trial runs up to these
      last = std::max(last, subgraph_of[graph.values[value].producer]);
    reach[first] = std::max(reach[first], last);
  }
  std::vector<graph::Subgraph> joined;
  std::size_t until = 0;
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    if (s == 0 || s > until) {
      joined.push_back(std::move(subgraphs[s]));
      until = s;
    } else {
      joined.back().nodes.insert(joined.back().nodes.end(), subgraphs[s].nodes.begin(), subgraphs[s].nodes.end());
    }
    until = std::max(until, reach[s]);
  }
  return joined;
}

}  // namespace layerpress::setup
