#include "layerpress/run/decisions/expert_measurement.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/facts/expert_layers.h"

namespace layerpress::run {
namespace {

using graph::ExpertLayer;

/// The traced model with the experts on their routed tokens only.
model::TracedModel without_selection(model::TracedModel traced) {
  traced.graph = graph::without_selection(traced.graph);
  return traced;
}

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

/// The model's layers, cut before the experts of each and what chooses among them, where the fewest values are passed on: what stands before is
/// the same with fewer experts.
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

/// Half of what may be stored, because two models are run in turn; the rest is for a layer's weights and values.
residency::ActivationStore::Options store_of(const setup::RunSetup& setup, const std::filesystem::path& scratch) {
  residency::ActivationStore::Options options;
  const bool may_use_disk = setup::may_use_disk(setup.place);
  if (may_use_disk) options.scratch = scratch;
  if (setup.place == setup::ActivationPlace::kDisk)
    options.memory_limit = 0;
  else if (may_use_disk && setup.budget != setup::kUnlimited)
    options.memory_limit = setup.budget / 4;
  return options;
}

/// A model that runs layer by layer, with all that the run refers to.
struct RunningModel {
  RunningModel(Rank& rank, const setup::RunSetup& setup, model::TracedModel model,
               const std::vector<execution::Batch>& batches, const std::filesystem::path& scratch)
      : traced(without_selection(std::move(model))),
        layers(graph::expert_layers(traced.graph)),
        context{.graph = traced.graph,
                .weights = weights,
                .placement = setup.placement,
                .batches = batches,
                .control = rank.control,
                .times = rank.times,
                .group = rank.group},
        body(context, cut_at_experts(traced, layers), output(), store_of(setup, scratch)) {}
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;

  /// The last layer's.
  graph::ValueId output() const { return traced.graph.nodes[layers.back().experts.back().node].output; }

  const model::TracedModel traced;
  const std::vector<ExpertLayer> layers;
  residency::CheckpointWeights weights;  // of a checkpoint that changes between layers
  execution::RunContext context;
  execution::BodyRun body;
};

/// Their figures, of all ranks.
std::vector<modifier::ExpertFigures> figures_of(const graph::Graph& graph, const ExpertLayer& layer,
                                                const execution::ExpertContributions& own, dist::Group& group) {
  std::vector<double> flat;
  for (const ExpertLayer::Member& expert : layer.experts) {
    const auto [sum, tokens] = own.of(graph.nodes[expert.node].output);
    flat.insert(flat.end(), {sum, static_cast<double>(tokens)});
  }
  const at::Tensor sums = at::tensor(flat, at::kDouble);
  group.all_reduce(sums);
  group.broadcast(sums, 0);  // the last bits of a sum could differ
  std::vector<modifier::ExpertFigures> figures;
  const auto* next = sums.const_data_ptr<double>();
  for (std::size_t e = 0; e < layer.experts.size(); ++e, next += 2)
    figures.push_back({next[0], static_cast<std::int64_t>(next[1])});
  return figures;
}

/// Of the log.
constexpr const char* kExperts = "experts";

using LayerFigures = std::vector<modifier::ExpertFigures>;

void keep(output::MeasurementLog& log, const ExpertLayer& layer, const LayerFigures& figures) {
  Json own = Json::array();
  for (const modifier::ExpertFigures& expert : figures) own.push_back({expert.sum, expert.tokens});
  log.add(kExperts, {{"layer", layer.name}, {"figures", std::move(own)}});
}

/// Those of the first layers, as far as an earlier run has come.
std::vector<LayerFigures> known_figures(const std::vector<ExpertLayer>& layers, const output::MeasurementLog& log) {
  std::vector<LayerFigures> known;
  for (const Json& record : log.found(kExperts)) {
    if (known.size() == layers.size() || record.value("layer", "") != layers[known.size()].name) break;
    LayerFigures figures;
    for (const auto& [sum, tokens] :
         json_get<std::vector<std::pair<double, std::int64_t>>>(record, "figures", "measurement"))
      figures.push_back({sum, tokens});
    if (figures.size() != layers[known.size()].experts.size()) break;
    known.push_back(std::move(figures));
  }
  return known;
}

/// The checkpoint with these experts only.
std::shared_ptr<const checkpoint::Checkpoint> with_experts(const setup::RunSetup& setup,
                                                           const modifier::ExpertPruning& pruning,
                                                           const rewrite::KeptExperts& kept) {
  rewrite::Changes changes = pruning.changes(setup.model, kept);
  changes.is_traced_again = false;
  return rewrite::rewritten({.checkpoint = setup.model.checkpoint, .traced = {}}, changes).checkpoint;
}

}  // namespace

rewrite::KeptExperts measured_choice(Rank& rank, const setup::RunSetup& setup, const modifier::ExpertPruning& pruning,
                                     const model::TracedModel& smaller, const data::CalibrationSet& set,
                                     output::MeasurementLog& log) {
  const auto phase = rank.times.measure("measure");
  const TemporaryDirectory folder(rank.options.offload_dir);
  const graph::Graph& graph = setup.model.traced.graph;
  const std::int64_t tokens = setup::choose_batch_tokens(rank.options.batch_tokens, graph, setup.placement.device);
  std::vector<execution::Batch> batches;
  if (set.sample_count() > 0) batches = setup::make_batches(set, tokens, graph);
  RunningModel whole(rank, setup, setup.model.traced, batches, folder.path() / "whole");
  RunningModel pruned(rank, setup, smaller, batches, folder.path() / "pruned");
  execution::ExpertContributions contributions;
  whole.context.contributions = &contributions;
  whole.weights.use(setup.model.checkpoint);
  const rewrite::ExpertMixture mixture = pruning.mixture_of(setup.model);
  rewrite::KeptExperts kept = pruning.first_experts(mixture);
  const std::vector<LayerFigures> known = known_figures(whole.layers, log);
  if (!known.empty())
    rank.control.message(LogLevel::kInfo, fmt::format("{} of {} layers with experts are measured already", known.size(),
                                                      whole.layers.size()));
  std::vector<LayerFigures> figures;  // of layers with experts
  for (std::size_t s = 0; s < whole.body.size(); ++s) {
    rank.control.step(s, whole.body.size(), "experts of " + whole.body.name(s));
    const auto here = [&](std::size_t l) {
      return l < whole.layers.size() && whole.body.holds(s, whole.layers[l].experts.front().node);
    };
    // What a layer with known figures gives is needed from the pruned model only.
    const bool removes = pruning.is_uniform() && here(figures.size());
    std::size_t end = figures.size();
    while (here(end)) ++end;
    if (!removes || end > known.size()) whole.body.run(s);
    for (std::size_t l = figures.size(); l < end; ++l) {
      const ExpertLayer& layer = whole.layers[l];
      if (l < known.size()) {
        figures.push_back(known[l]);
      } else {
        figures.push_back(figures_of(whole.traced.graph, layer, contributions, rank.group));
        keep(log, layer, figures.back());
      }
      if (pruning.is_uniform()) kept[layer.name] = pruning.choose(mixture, figures.back());
    }
    if (s + 1 == whole.body.size()) break;
    if (!removes) {
      pruned.body.take_over(s, whole.body);
    } else {
      pruned.weights.use(with_experts(setup, pruning, kept));
      pruned.body.run(s);
      whole.body.take_over(s, pruned.body);
    }
  }
  return pruning.is_uniform() ? kept : pruning.choose_over_layers(mixture, figures);
}

}  // namespace layerpress::run
