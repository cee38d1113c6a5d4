#include "layerpress/run/decisions/expert_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include "layerpress/execution/body_run.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/kernels/layers/transformer.h"
#include "layerpress/plan/planned_stage.h"
#include "layerpress/run/decisions/measuring_run.h"

namespace layerpress::run {
namespace {

using graph::ExpertLayer;

/// What a run may hold more when it measures than a plan that is made before it.
constexpr std::uint64_t kMargin = 2 * plan::kMebibyte;

/// How many values that earlier nodes make a node or a later one reads, for each node.
std::vector<int> passed_on(const graph::Graph& graph) {
  std::vector<int> change(graph.nodes.size() + 1, 0);
  std::vector<graph::NodeId> last(graph.values.size(), -1);
  for (graph::NodeId n = 0; n < std::ssize(graph.nodes); ++n)
    for (const graph::ValueId value : graph.nodes[n].inputs) last[value] = n;
  for (graph::NodeId n = 0; n < std::ssize(graph.nodes); ++n)
    if (const graph::NodeId reader = last[graph.nodes[n].output]; reader > n) ++change[n + 1], --change[reader + 1];
  std::partial_sum(change.begin(), change.end(), change.begin());
  return change;
}

/// The first node that reads a weight which fewer experts change.
graph::NodeId first_changed(const graph::Graph& graph, const ExpertLayer& layer) {
  std::set<std::string> weights;
  for (const graph::WeightUse& use : layer.router_weights(graph)) weights.insert(use.name);
  for (const ExpertLayer::Member& expert : layer.experts) weights.insert(expert.weights.begin(), expert.weights.end());
  graph::NodeId n = layer.first;
  const auto is_changed = [&](const graph::WeightUse& use) { return weights.contains(use.name); };
  while (n < layer.experts.front().node &&
         !std::ranges::any_of(graph::weights_of(graph.nodes[n].operation), is_changed))
    ++n;
  return n;
}

/// The batch with the most tokens, and the one with the longest sample: no other takes more.
std::set<std::size_t> largest_batches(const std::vector<execution::Batch>& batches) {
  std::set<std::size_t> places;
  const auto add = [&](const auto& size_of) {
    const auto largest = std::max_element(batches.begin(), batches.end(), [&](const auto& one, const auto& other) {
      return size_of(one) < size_of(other);
    });
    if (largest != batches.end()) places.insert(static_cast<std::size_t>(largest - batches.begin()));
  };
  add([](const execution::Batch& batch) { return batch.tokens(); });
  add([](const execution::Batch& batch) { return kernels::longest_sample(batch.offsets); });
  return places;
}

/// Follows the models through the layers without data. `store_bytes`: of values between layers, of both models.
plan::MemoryPlan memory_with(const plan::PlanRequest& request, const std::vector<execution::BodyStage>& stages,
                             std::uint64_t store_bytes) {
  constexpr int kModels = 2;
  const plan::PlannedSizes sizes(request);
  const graph::Graph& graph = sizes.graph();
  const std::uint64_t baseline = plan::process_baseline(*schedule::pipeline_named("sequential"), graph);
  const auto nothing = [](graph::ValueId) { return std::uint64_t(0); };
  const std::set<std::size_t> largest = largest_batches(request.batches);
  double tokens = 0, counted = 0;  // of all batches, and of those that are looked at
  for (const execution::Batch& batch : request.batches) tokens += static_cast<double>(batch.tokens());
  for (const std::size_t b : largest) counted += static_cast<double>(request.batches[b].tokens());
  std::map<graph::ValueId, std::uint64_t> stored;
  std::uint64_t all_stored = 0;
  plan::MemoryPlan memory;
  for (const execution::BodyStage& part : stages) {
    plan::SubgraphPlan& own = memory.subgraphs.emplace_back();
    own.name = part.name;
    for (const std::string& weight : graph::weight_names(graph, part.stage.nodes)) {
      own.weight_bytes += sizes.file_bytes(weight);
      own.read_bytes += kModels * sizes.file_bytes(weight);
      if (!sizes.can_stay(weight)) own.onloaded_bytes += sizes.weight_bytes(weight);
      own.workspace_bytes = std::max(own.workspace_bytes, sizes.computing_bytes(weight));
    }
    for (const graph::ValueId value : part.stage.keeps) {
      std::uint64_t& bytes = stored[value];
      for (std::size_t b = 0; b < request.batches.size(); ++b) bytes += kModels * sizes.kept_bytes(value, b);
      all_stored += bytes;
    }
    for (const std::size_t b : largest) {
      const plan::StageNeeds needs = plan::stage_needs(sizes, request.batches[b], b, part.stage, nothing);
      const double times = kModels * tokens / counted;
      for (const auto& [phase, flops] : needs.flops) own.flops[phase] += times * flops;
      own.forward_bytes += times * needs.forward_bytes;
      own.transient_bytes = std::max(own.transient_bytes, needs.most);
    }
    own.activation_bytes = std::min(all_stored, store_bytes);
    own.activation_disk_bytes = all_stored - own.activation_bytes;
    own.peak.host = baseline + own.activation_bytes;
    (sizes.is_on_host() ? own.peak.host : own.peak.device) +=
        own.onloaded_bytes + std::max(own.workspace_bytes, own.transient_bytes);
    memory.spilled_bytes = std::max(memory.spilled_bytes, own.activation_disk_bytes);
    memory.peak = {std::max(memory.peak.host, own.peak.host), std::max(memory.peak.device, own.peak.device)};
    for (const graph::ValueId value : part.freed) {
      all_stored -= stored[value];
      stored.erase(value);
    }
  }
  return memory;
}

/// What a plan needs of a setup, with the experts on their routed tokens only.
setup::RunSetup with_routed_experts(const setup::RunSetup& setup) {
  setup::RunSetup routed;
  routed.threads = setup.threads, routed.ranks = setup.ranks;
  routed.pipeline = setup.pipeline;
  routed.model = setup.model;
  routed.model.traced.graph = graph::without_selection(setup.model.traced.graph);
  routed.placement = setup.placement, routed.place = setup.place;
  routed.budget = setup.budget, routed.device_budget = setup.device_budget;
  return routed;
}

std::vector<std::int64_t> batch_sizes(const setup::RunSetup& setup, std::int64_t asked) {
  std::vector<std::int64_t> sizes = {
      setup::choose_batch_tokens(asked, setup.model.traced.graph, setup.placement.device)};
  while (asked == 0 && sizes.back() >= 512) sizes.push_back(sizes.back() / 2);
  return sizes;
}

}  // namespace

std::vector<graph::Subgraph> cut_at_experts(const model::TracedModel& traced, const std::vector<ExpertLayer>& layers) {
  const std::vector<int> passed = passed_on(traced.graph);
  std::vector<graph::Subgraph> cut;
  for (graph::Subgraph& subgraph : setup::cut_model(traced, {})) {
    for (const ExpertLayer& layer : layers) {
      const auto begin = subgraph.nodes.begin();
      const auto end = std::upper_bound(begin, subgraph.nodes.end(), first_changed(traced.graph, layer));
      if (end - begin < 2 || end == subgraph.nodes.end()) continue;
      auto place = begin + 1;
      for (auto n = place; n != end; ++n)
        if (passed[*n] <= passed[*place]) place = n;
      cut.push_back({subgraph.name, {begin, place}, subgraph.holds_target});
      subgraph.nodes.erase(begin, place);
      subgraph.holds_target = false;
    }
    cut.push_back(std::move(subgraph));
  }
  return cut;
}

graph::ValueId output_of_experts(const graph::Graph& graph, const std::vector<ExpertLayer>& layers) {
  return graph.nodes[layers.back().experts.back().node].output;
}

plan::RunPlan plan_experts(const setup::RunSetup& given, const std::vector<plan::SampleShape>& samples,
                           std::int64_t batch_tokens) {
  const setup::RunSetup setup = with_routed_experts(given);
  const graph::Graph& graph = setup.model.traced.graph;
  const std::vector<ExpertLayer> layers = graph::expert_layers(graph);
  const std::vector<execution::BodyStage> stages =
      execution::body_stages(graph, cut_at_experts(setup.model.traced, layers), output_of_experts(graph, layers));
  const plan::PlanInput input{.run = setup, .samples = samples};
  const bool may_use_disk = setup::may_use_disk(setup.place);
  const std::uint64_t least_store = may_use_disk ? 0 : setup::kUnlimited;
  std::optional<plan::RunPlan> chosen, least;
  const std::vector<std::int64_t> sizes = batch_sizes(setup, batch_tokens);
  for (const std::int64_t size : sizes) {
    if (chosen && size != sizes.back()) continue;
    plan::RunPlan plan;
    plan.batch_tokens = size;
    plan.batches = plan::batches_of(samples, size, graph);
    const plan::PlanRequest request{.input = input, .batches = plan.batches};
    plan.memory = memory_with(request, stages, least_store);
    plan.smallest_budget = (plan.memory.peak.host + kMargin + plan::kMebibyte - 1) / plan::kMebibyte * plan::kMebibyte;
    if (!least || plan.smallest_budget < least->smallest_budget) least = plan;
    if (chosen || plan.memory.peak.host > setup.budget || plan.memory.peak.device > setup.device_budget) continue;
    plan.activation_limit = least_store;
    if (may_use_disk && setup.place != setup::ActivationPlace::kDisk)
      plan.activation_limit = setup.budget - plan.memory.peak.host;
    plan.memory = memory_with(request, stages, plan.activation_limit);
    chosen = std::move(plan);
  }
  if (!chosen) require_memory(*least, setup, "what each expert contributes");
  chosen->smallest_budget = least->smallest_budget;
  return std::move(*chosen);
}

}  // namespace layerpress::run
