#include "layerpress/run/precision/unit_divergences.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/system/machine.h"
#include "layerpress/base/text.h"
#include "layerpress/execution/body_run.h"
#include "layerpress/run/compression/compression_run.h"
#include "layerpress/run/evaluation/model_head.h"
#include "layerpress/run/precision/divergence_plan.h"

namespace layerpress::run {
namespace {

constexpr std::int64_t kLeastTokens = 16;  // of a sample that is cut: an imported graph may not hold for a single token

/// Rounds weights.
class RoundedWeights {
 public:
  RoundedWeights(const Disturbances& disturbances, const residency::WeightSource& weights)
      : weights_(weights), matrices_(matrices_of(disturbances.served.model.traced.graph)) {
    const graph::Graph& measured = disturbances.setup.model.traced.graph;
    for (const auto& [n, assignment] : disturbances.setup.assignments.linears)
      for (const graph::NodeId fused : assignment.fused)
        fused_[measured.module_name(measured.nodes[n])].push_back(measured.module_name(measured.nodes[fused]));
  }

  const std::string& weight_of(const std::string& module) const { return matrices_.at(module).weight; }

  at::Tensor rounded(const std::string& module, const compression::Quantizer& rounding,
                     const residency::Placement& placement, PhaseTimes& times) const {
    compression::LinearWeight linear = loaded(module, rounding, placement);
    linear.shared = rounding.value_to_share(linear, nullptr);
    if (const auto fused = fused_.find(module); linear.shared && fused != fused_.end())
      for (const std::string& other : fused->second)
        linear.shared =
            std::max(*linear.shared, rounding.value_to_share(loaded(other, rounding, placement), nullptr).value_or(0));
    const auto compressed = rounding.compress({linear}, nullptr, times);
    return quant::dequantize(*linear.scheme, compressed.front().weight, linear.weight.scalar_type());
  }

 private:
  compression::LinearWeight loaded(const std::string& module, const compression::Quantizer& rounding,
                                   const residency::Placement& placement) const {
    const at::Tensor weight = weights_.load(weight_of(module));
    return {module, weight.to(placement.device), rounding.scheme_groups().front().scheme, weight.scalar_type()};
  }

  const residency::WeightSource& weights_;
  std::map<std::string, graph::WeightMatrix> matrices_;
  std::map<std::string, std::vector<std::string>> fused_;
};

/// Replaces the weights that a model rounds and these nodes read; returns their names.
std::vector<std::string> disturb(const execution::RunContext& run, const std::vector<graph::NodeId>& nodes,
                                 const std::vector<Disturbance>& model, const RoundedWeights& rounded,
                                 residency::Onload& parameters) {
  std::vector<std::string> weights;
  for (const auto& [module, rounding] : modules_of(linear_modules(run.graph, nodes), model)) {
    weights.push_back(rounded.weight_of(module));
    parameters.reload(weights.back());  // its values need not be in memory beside the rounded ones
    parameters.replace(weights.back(), rounded.rounded(module, *rounding, run.placement, run.times));
  }
  return weights;
}

/// The original model, number 0, and the disturbed ones, from 1. Before its first rounded weight, a model's values are the original's.
class BranchedRun {
 public:
  BranchedRun(const execution::RunContext& run, graph::ValueId wanted, residency::ActivationStore& store)
      : run_(run), wanted_(wanted), store_(store) {}

  void go_through(const Disturbances& disturbances, const RoundedWeights& rounded);

  at::Tensor hidden(std::size_t model) const { return get(wanted_, model); }

 private:
  void run_branches(const graph::Stage& stage, residency::Onload& parameters, const Disturbances& disturbances,
                    const RoundedWeights& rounded);
  at::Tensor get(graph::ValueId value, std::size_t model) const {
    return store_.get(value, stored_.count({value, model}) != 0 ? model : 0);
  }
  void run_model(std::size_t model, const graph::Stage& stage, const residency::Onload& parameters) {
    execution::run_stage(run_, stage, parameters, run_.batches.front(),
                         {.get = [&](graph::ValueId value) { return get(value, model); },
                          .put =
                              [&](graph::ValueId value, at::Tensor tensor) {
                                stored_.insert({value, model});
                                store_.put(value, model, std::move(tensor));
                              }});
  }

  const execution::RunContext& run_;
  graph::ValueId wanted_;
  residency::ActivationStore& store_;
  std::set<std::pair<graph::ValueId, std::size_t>> stored_;
  std::set<std::size_t> branched_;  // models that differ from the original by now
};

void BranchedRun::run_branches(const graph::Stage& stage, residency::Onload& parameters,
                               const Disturbances& disturbances, const RoundedWeights& rounded) {
  for (std::size_t m = 1; m <= disturbances.models.size(); ++m) {
    run_.control.check_stop();
    run_.control.phase("disturb", m - 1, disturbances.models.size());
    const std::vector<std::string> replaced =
        disturb(run_, stage.nodes, disturbances.models[m - 1], rounded, parameters);
    if (!replaced.empty()) branched_.insert(m);
    if (branched_.count(m) != 0) run_model(m, stage, parameters);
    for (const std::string& weight : replaced) parameters.reload(weight);
  }
}

void BranchedRun::go_through(const Disturbances& disturbances, const RoundedWeights& rounded) {
  const std::vector<execution::BodyStage> stages =
      execution::body_stages(run_.graph, disturbances.served.subgraphs, wanted_);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    run_.control.step(s, stages.size(), stages[s].name);
    const graph::Stage& stage = stages[s].stage;
    residency::Onload parameters(run_.weights, graph::weight_names(run_.graph, stage.nodes), run_.placement);
    run_model(0, stage, parameters);
    run_branches(stage, parameters, disturbances, rounded);
    for (const graph::ValueId value : stages[s].freed) store_.drop(value);
    return_freed_memory();  // which many values of other sizes leave in pieces
  }
}

/// Where each sample's tokens that count begin among all that count, and the end.
std::vector<std::int64_t> bounds_of(const execution::Batch& batch) {
  if (!batch.counted.defined()) return batch.offsets;
  const auto* counted = batch.counted.const_data_ptr<std::int64_t>();
  std::vector<std::int64_t> bounds;
  for (const std::int64_t offset : batch.offsets)
    bounds.push_back(std::lower_bound(counted, counted + batch.counted.numel(), offset) - counted);
  return bounds;
}

/// Compares the predictions of models on the tokens that count.
class Predictions {
 public:
  Predictions(const execution::RunContext& run, const ModelHead& head, const BranchedRun& models)
      : run_(run),
        head_(head),
        models_(models),
        original_(run.weights, graph::weight_names(run.graph, head.nodes()), run.placement) {}

  /// Adds each model's divergence from the original, summed over tokens, to `sums`.
  void add(const Disturbances& disturbances, const RoundedWeights& rounded, double* sums) const {
    std::vector<std::size_t> with_original_head;
    for (std::size_t m = 0; m < disturbances.models.size(); ++m) {
      if (modules_of(linear_modules(run_.graph, head_.nodes()), disturbances.models[m]).empty()) {
        with_original_head.push_back(m);
        continue;
      }
      residency::Onload head(run_.weights, graph::weight_names(run_.graph, head_.nodes()), run_.placement);
      disturb(run_, head_.nodes(), disturbances.models[m], rounded, head);
      add({m}, head, sums);
    }
    add(with_original_head, original_, sums);
  }

 private:
  /// In chunks, so that logits stay small. `parameters`: of the heads of these models.
  void add(const std::vector<std::size_t>& disturbed, const residency::Onload& parameters, double* sums) const {
    const std::int64_t chunk = divergence_chunk(run_.graph);
    const execution::Batch& batch = run_.batches.front();
    const std::vector<std::int64_t> bounds = bounds_of(batch);
    for (std::size_t sample = 0; sample + 1 < bounds.size(); ++sample)
      for (std::int64_t first = bounds[sample], last = first; first < bounds[sample + 1]; first = last) {
        last = std::min(bounds[sample + 1], first + chunk);
        const auto rows_of = [&](const at::Tensor& values) {
          return batch.counted.defined()
                     ? values.index_select(0, batch.counted.slice(0, first, last).to(values.device()))
                     : values.slice(0, first, last);
        };
        const auto logs_of = [&](std::size_t model, const residency::Onload& own) {
          const at::Tensor logits = head_.logits(run_, own, rows_of(batch.token_ids), rows_of(models_.hidden(model)));
          return at::log_softmax(logits.to(at::kFloat), -1);
        };
        const at::Tensor wanted = logs_of(0, original_), weights = wanted.exp();
        for (const std::size_t m : disturbed) {
          run_.control.check_stop();
          sums[m] += logs_of(m + 1, parameters).neg_().add_(wanted).mul_(weights).sum(at::kDouble).item<double>();
        }
      }
  }

  const execution::RunContext& run_;
  const ModelHead& head_;
  const BranchedRun& models_;
  const residency::Onload original_;
};

void measure_own(Rank& rank, const Disturbances& disturbances, const data::CalibrationSet& samples, double* sums) {
  const setup::RunSetup& served = disturbances.served;
  release_memory(rank);
  const plan::RunPlan plan = plan_divergences(disturbances, plan::shapes_of(samples));
  limit_memory(rank, served, plan);
  rank.control.message(
      LogLevel::kInfo,
      fmt::format("[mixed_precision] comparing the predictions of {} models with rounded weights on {} tokens; "
                  "plan: {} of memory",
                  disturbances.models.size(), samples.counted_tokens(), format_bytes(plan.memory.peak.host)));
  const graph::Graph& graph = served.model.traced.graph;
  const std::unique_ptr<residency::WeightSource> weights = served.model.weights();
  const std::vector<execution::Batch> batches = setup::make_batches(samples, kDivergenceBatch, graph);
  dist::Group alone;
  const execution::RunContext run{graph, *weights, served.placement, batches, rank.control, rank.times, alone};
  const TemporaryDirectory folder(rank.options.offload_dir);
  residency::ActivationStore store(disturbances.models.size() + 1,
                                   {.memory_limit = plan.activation_limit, .scratch = folder.path() / "activations"});
  const ModelHead head(graph);
  BranchedRun models(run, head.hidden(), store);
  const RoundedWeights rounded(disturbances, *weights);
  models.go_through(disturbances, rounded);
  Predictions(run, head, models).add(disturbances, rounded, sums);
}

}  // namespace

data::CalibrationSet short_samples(const data::CalibrationSet& set, std::int64_t tokens) {
  data::CalibrationSet samples;
  const auto copy = [](const auto& from, std::int64_t first, std::int64_t last, auto& to) {
    to.insert(to.end(), from.begin() + first, from.begin() + last);
  };
  for (std::int64_t i = 0; i < set.sample_count() && samples.token_count() < tokens; ++i) {
    const std::int64_t first = set.sample_offsets[i], whole = set.sample_offsets[i + 1] - first;
    const std::int64_t length = std::min({whole, kDivergenceSample, tokens - samples.token_count()});
    const auto marks = set.loss_mask.begin() + (set.loss_mask.empty() ? 0 : first);
    if (length < std::min(whole, kLeastTokens)) continue;
    if (!set.loss_mask.empty() && std::count(marks, marks + length, 0) == length) continue;
    if (!set.images.empty()) samples.images.push_back(set.images[static_cast<std::size_t>(i)].cut(length));
    copy(set.tokens, first, first + length, samples.tokens);
    if (!set.loss_mask.empty()) copy(set.loss_mask, first, first + length, samples.loss_mask);
    samples.sample_offsets.push_back(samples.token_count() + length);
  }
  if (samples.token_count() > 0 || set.loss_mask.empty()) return samples;
  data::CalibrationSet unmarked = set;
  unmarked.loss_mask.clear();
  return short_samples(unmarked, tokens);
}

std::vector<double> measure_divergences(Rank& rank, const Disturbances& disturbances,
                                        const data::CalibrationSet& samples) {
  const auto phase = rank.times.measure("disturb");
  const at::Tensor sums = at::zeros({static_cast<std::int64_t>(disturbances.models.size()) + 1}, at::kDouble);
  auto* figures = sums.data_ptr<double>();
  if (samples.token_count() > 0) measure_own(rank, disturbances, samples, figures);
  figures[disturbances.models.size()] = static_cast<double>(samples.counted_tokens());
  rank.group.all_reduce(sums);
  const double tokens = figures[disturbances.models.size()];
  if (tokens == 0)
    throw DataError("[mixed_precision] {}: has no tokens on which predictions could be compared", rank.options.dataset);
  std::vector<double> divergences;
  for (std::size_t m = 0; m < disturbances.models.size(); ++m)
    divergences.push_back(std::max(0.0, figures[m] / tokens));
  return divergences;
}

}  // namespace layerpress::run
