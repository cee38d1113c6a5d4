#include "layerpress/run/decisions/expert_measurement.h"

#include <ATen/ATen.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/graph/facts/expert_layers.h"
#include "layerpress/run/compression/compression_run.h"
#include "layerpress/run/decisions/expert_plan.h"
#include "layerpress/run/results/announcement.h"

namespace layerpress::run {
namespace {

using graph::ExpertLayer;

/// The traced model with the experts on their routed tokens only.
model::TracedModel without_selection(model::TracedModel traced) {
  traced.graph = graph::without_selection(traced.graph);
  return traced;
}

/// Half of what may be stored, because two models are run in turn.
residency::ActivationStore::Options store_of(const setup::RunSetup& setup, const plan::RunPlan& plan,
                                             const std::filesystem::path& scratch) {
  residency::ActivationStore::Options options;
  if (setup::may_use_disk(setup.place)) options.scratch = scratch;
  options.memory_limit = plan.activation_limit / 2;
  return options;
}

/// A model that runs layer by layer, with all that the run refers to.
struct RunningModel {
  RunningModel(Rank& rank, const setup::RunSetup& setup, const plan::RunPlan& plan, model::TracedModel model,
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
        body(context, cut_at_experts(traced, layers), output_of_experts(traced.graph, layers),
             store_of(setup, plan, scratch)) {}
  RunningModel(const RunningModel&) = delete;
  RunningModel& operator=(const RunningModel&) = delete;

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
                                     const model::TracedModel& smaller, const Calibration& calibration,
                                     output::MeasurementLog& log) {
  const auto phase = rank.times.measure("measure");
  const TemporaryDirectory folder(rank.options.offload_dir);
  const graph::Graph& graph = setup.model.traced.graph;
  release_memory(rank);
  const data::CalibrationSet& set = calibration.set;
  const plan::RunPlan plan = plan_experts(setup, plan::shapes_of(set), rank.options.batch_tokens);
  announce(rank,
           {.setup = setup, .plan = plan, .all_tokens = calibration.all_tokens, .all_samples = calibration.all_samples},
           "measuring what each expert contributes", folder.path());
  rank.earlier_planned_bytes = std::max(rank.earlier_planned_bytes, plan.memory.peak.host);
  limit_memory(rank, setup, plan);
  std::vector<execution::Batch> batches;
  if (set.sample_count() > 0) batches = setup::make_batches(set, plan.batch_tokens, graph);
  RunningModel whole(rank, setup, plan, setup.model.traced, batches, folder.path() / "whole");
  RunningModel pruned(rank, setup, plan, smaller, batches, folder.path() / "pruned");
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
