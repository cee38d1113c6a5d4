#include "layerpress/plan/planned_weights.h"

#include <algorithm>

#include "layerpress/graph/weight_matrix.h"
#include "layerpress/pipeline/sinks/background_sink.h"
#include "layerpress/residency/host_copies.h"

namespace layerpress::plan {

PlannedWeights::PlannedWeights(const PlanRequest& request, const PlannedSizes& sizes)
    : run_(request.input.run), graph_(run_.model.traced.graph), sizes_(sizes) {}

void PlannedWeights::add(std::uint64_t bytes, SubgraphPlan& plan) {
  onloaded_ += bytes;
  plan.onloaded_bytes = std::max(plan.onloaded_bytes, onloaded_);
}

void PlannedWeights::begin(const schedule::SubgraphSchedule& subgraph, const std::vector<std::string>& next,
                           SubgraphPlan& plan) {
  pin(subgraph.reads, next);
  most_ = 0;
  const std::set<std::string> replaced = replaced_in(subgraph);
  for (const std::string& weight : subgraph.weights) {
    plan.weight_bytes += sizes_.file_bytes(weight);
    plan.read_bytes += sizes_.file_bytes(weight);
    most_ = std::max(most_, onloaded_ + sizes_.computing_bytes(weight));
    if (replaced.count(weight) == 0) onload(weight, plan);
  }
  for (const std::string& weight : subgraph.original_weights)
    if (!sizes_.can_stay(weight)) add(sizes_.weight_bytes(weight), plan);
}

void PlannedWeights::onload(const std::string& weight, SubgraphPlan& plan) {
  const bool original = sizes_.is_original(weight);
  // Packed and unpacked codes of a compressed weight while it is read.
  if (!original) most_ = std::max(most_, onloaded_ + 2 * static_cast<std::uint64_t>(sizes_.elements(weight)));
  if (!original || !sizes_.can_stay(weight)) add(sizes_.weight_bytes(weight), plan);
}

void PlannedWeights::change(const std::string& name, SubgraphPlan& plan) {
  if (changed_.insert(name).second) add(sizes_.stored_weight_bytes(name), plan);
}

void PlannedWeights::add_compressed(std::int64_t elements, SubgraphPlan& plan) {
  add(PlannedSizes::bytes_of(elements, run_.placement.dtype), plan);
}

void PlannedWeights::end(const schedule::SubgraphSchedule& subgraph) {
  for (const std::string& weight : subgraph.kept_weights) kept_ += sizes_.weight_bytes(weight);
  for (const std::string& weight : subgraph.dropped_weights) kept_ -= sizes_.weight_bytes(weight);
  onloaded_ = kept_;
  changed_.clear();
}

/// This subgraph's weights, the next ones as they are fetched, and results waiting to be written.
void PlannedWeights::pin(const std::vector<std::string>& weights, const std::vector<std::string>& next) {
  if (sizes_.is_on_host()) return;
  pinned_ = pipeline::BackgroundSink::kMostBytes;
  for (const std::vector<std::string>* names : {&weights, &next})
    for (const std::string& weight : *names)
      pinned_ += residency::HostCopies::host_bytes(sizes_.stored_weight_bytes(weight));
}

/// Whether a transform's statistics are computed with a weight before it is compressed.
bool PlannedWeights::runs_before(const schedule::SubgraphSchedule& subgraph, const std::string& weight) const {
  for (const std::size_t transform : subgraph.transforms())
    for (const graph::WeightUse& use :
         graph::weights_of(graph_.nodes[run_.assignments.transforms[transform].site.place.source].operation))
      if (use.name == weight) return true;
  return false;
}

/// The weights that are compressed before any node computes with them.
std::set<std::string> PlannedWeights::replaced_in(const schedule::SubgraphSchedule& subgraph) const {
  std::set<std::string> replaced;
  for (const graph::LinearGroup& group : subgraph.groups())
    for (const graph::NodeId n : group.linears) {
      const std::string weight = graph::weight_matrix(graph_.nodes[n].operation).value().weight;
      const bool computes =
          subgraph.uses_results && (!run_.assignments.linears.at(n).propagates || runs_before(subgraph, weight));
      if (!computes) replaced.insert(weight);
    }
  return replaced;
}

}  // namespace layerpress::plan
