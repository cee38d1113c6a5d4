#include "layerpress/run/precision/divergence_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "layerpress/execution/body_run.h"
#include "layerpress/plan/planned_stage.h"
#include "layerpress/quant/compressed_weight.h"
#include "layerpress/run/evaluation/model_head.h"

namespace layerpress::run {
namespace {

/// Buffers and code of products in fp32, which the pass before does not use.
constexpr std::uint64_t kOtherProducts = 6 * plan::kMebibyte;

/// Follows the models through the stages without data, as BranchedRun and Predictions do with it.
class DivergencePlanner {
 public:
  DivergencePlanner(const Disturbances& disturbances, const plan::PlanInput& input,
                    const std::vector<execution::Batch>& batches, std::uint64_t baseline, std::uint64_t store_bytes)
      : disturbances_(disturbances),
        graph_(input.run.model.traced.graph),
        matrices_(matrices_of(graph_)),
        request_{.input = input, .batches = batches},
        baseline_(baseline),
        store_bytes_(store_bytes) {}

  plan::MemoryPlan plan() {
    const ModelHead head(graph_);
    for (const execution::BodyStage& stage :
         execution::body_stages(graph_, request_.input.run.subgraphs, head.hidden()))
      add_stage(stage);
    add_predictions(head);
    for (const plan::SubgraphPlan& subgraph : plan_.subgraphs) {
      plan_.peak.host = std::max(plan_.peak.host, subgraph.peak.host);
      plan_.peak.device = std::max(plan_.peak.device, subgraph.peak.device);
    }
    return std::move(plan_);
  }

 private:
  plan::SubgraphPlan& own() { return plan_.subgraphs.back(); }

  /// Begins a subgraph with the weights of these nodes.
  void begin(const std::string& name, const std::vector<graph::NodeId>& nodes) {
    plan_.subgraphs.emplace_back().name = name;
    const std::vector<std::string> weights = graph::weight_names(graph_, nodes);
    for (const std::string& weight : weights) {
      own().weight_bytes += sizes_.file_bytes(weight);
      own().read_bytes += sizes_.file_bytes(weight);
      if (!sizes_.can_stay(weight)) own().onloaded_bytes += sizes_.weight_bytes(weight);
      own().workspace_bytes = std::max(own().workspace_bytes, sizes_.computing_bytes(weight));
    }
  }

  /// What a model's rounded weights take besides the weights that they replace. Their rounding is part of the subgraph's workspace.
  std::uint64_t disturbed_bytes(const std::set<std::string>& here, const std::vector<Disturbance>& model) {
    std::uint64_t bytes = 0;
    for (const auto& [module, rounding] : modules_of(here, model)) {
      const graph::WeightMatrix& matrix = matrices_.at(module);
      const at::Device device = sizes_.placement().device;
      const compression::CompressionCost cost = rounding->cost({{.rows = matrix.rows,
                                                                 .columns = matrix.columns,
                                                                 .dtype = sizes_.stored_dtype(matrix.weight),
                                                                 .scheme = rounding->scheme_groups().front().scheme,
                                                                 .device = device}});
      for (const auto& [phase, flops] : cost.flops) own().flops[phase] += flops;
      const std::uint64_t dequantizing = cost.result_bytes + sizes_.stored_weight_bytes(matrix.weight) +
                                         quant::dequantize_workspace(matrix.rows, matrix.columns, device) +
                                         sizes_.weight_bytes(matrix.weight);
      own().workspace_bytes =
          std::max(own().workspace_bytes,
                   sizes_.computing_bytes(matrix.weight) + std::max<std::uint64_t>(cost.workspace_bytes, dequantizing));
      if (sizes_.can_stay(matrix.weight)) bytes += sizes_.weight_bytes(matrix.weight);
    }
    return bytes;
  }

  void add_stage(const execution::BodyStage& part) {
    begin(part.name, part.stage.nodes);
    const std::set<std::string> here = linear_modules(graph_, part.stage.nodes);
    std::uint64_t replaced = 0;
    for (std::size_t m = 0; m < disturbances_.models.size(); ++m) {
      if (modules_of(here, disturbances_.models[m]).empty()) continue;
      branched_.insert(m);
      replaced = std::max(replaced, disturbed_bytes(here, disturbances_.models[m]));
    }
    own().onloaded_bytes += replaced;
    const auto nothing = [](graph::ValueId) { return std::uint64_t(0); };
    const plan::StageNeeds needs = plan::stage_needs(sizes_, request_.batches.front(), 0, part.stage, nothing);
    const std::size_t times = 1 + branched_.size();
    for (const auto& [phase, flops] : needs.flops) own().flops[phase] += static_cast<double>(times) * flops;
    own().forward_bytes = static_cast<double>(times) * needs.forward_bytes;
    own().transient_bytes = needs.most;
    for (const graph::ValueId value : part.stage.keeps)
      stored_ += stored_by_value_[value] = times * sizes_.kept_bytes(value, 0);
    note(std::max(own().workspace_bytes, needs.most));
    for (const graph::ValueId value : part.freed)
      if (const auto found = stored_by_value_.find(value); found != stored_by_value_.end()) {
        stored_ -= found->second;
        stored_by_value_.erase(found);
      }
  }

  void add_predictions(const ModelHead& head) {
    begin("head", head.nodes());
    const std::set<std::string> here = linear_modules(graph_, head.nodes());
    std::uint64_t other = 0;  // the weights of a rounded head, beside the original's
    for (const std::vector<Disturbance>& model : disturbances_.models)
      if (!modules_of(here, model).empty())
        other = std::max(other, own().onloaded_bytes + disturbed_bytes(here, model));
    own().onloaded_bytes += other;
    const auto tokens = static_cast<double>(request_.batches.front().tokens());
    const std::int64_t vocabulary = graph_.values[graph_.output].features;
    const auto times = static_cast<double>(1 + disturbances_.models.size());
    for (const graph::NodeId n : head.nodes())
      if (const auto matrix = graph::weight_matrix(graph_.nodes[n].operation))
        own().flops["forward"] += 2 * times * tokens * static_cast<double>(matrix->rows * matrix->columns);
    const auto logits = plan::PlannedSizes::bytes_of(divergence_chunk(graph_) * vocabulary, at::kFloat);
    own().forward_bytes = 4 * times * tokens * static_cast<double>(vocabulary) * sizeof(float);
    own().transient_bytes =
        4 * logits + head.workspace_bytes(graph_, divergence_chunk(graph_), sizes_.placement(), sizes_.threads());
    note(std::max(own().workspace_bytes, own().transient_bytes));
  }

  /// The peak: `moment` beside weights and stored values.
  void note(std::uint64_t moment) {
    own().activation_bytes = std::min(stored_, store_bytes_);
    own().activation_disk_bytes = stored_ - own().activation_bytes;
    own().peak.host = baseline_ + own().activation_bytes;
    (sizes_.is_on_host() ? own().peak.host : own().peak.device) += own().onloaded_bytes + moment;
    plan_.spilled_bytes = std::max(plan_.spilled_bytes, own().activation_disk_bytes);
  }

  const Disturbances& disturbances_;
  const graph::Graph& graph_;
  const std::map<std::string, graph::WeightMatrix> matrices_;
  const plan::PlanRequest request_;
  const plan::PlannedSizes sizes_{request_};
  std::uint64_t baseline_, store_bytes_;
  std::set<std::size_t> branched_;  // models that differ from the original by now
  std::map<graph::ValueId, std::uint64_t> stored_by_value_;
  std::uint64_t stored_ = 0;  // their sum
  plan::MemoryPlan plan_;
};

}  // namespace

plan::RunPlan plan_divergences(const Disturbances& disturbances, const std::vector<plan::SampleShape>& samples) {
  const setup::RunSetup& served = disturbances.served;
  const plan::PlanInput input{.run = served, .samples = samples};
  plan::RunPlan plan;
  plan.batches = plan::batches_of(samples, kDivergenceBatch, served.model.traced.graph);
  if (plan.batches.empty()) return plan;
  // Once: it is measured, and a page more would make the same budget too small.
  const std::uint64_t baseline = plan::process_baseline(*served.pipeline, served.model.traced.graph) + kOtherProducts;
  const auto memory_with = [&](std::uint64_t store) {
    return DivergencePlanner(disturbances, input, plan.batches, baseline, store).plan();
  };
  constexpr std::uint64_t kLeastStore = 16 << 20;  // of values between stages; up to an eighth of the budget is added
  const std::uint64_t least = memory_with(kLeastStore).peak.host;
  plan.activation_limit = kLeastStore + std::min(served.budget / 8, served.budget - std::min(served.budget, least));
  plan.memory = memory_with(plan.activation_limit);
  plan.smallest_budget = (least + plan::kMebibyte - 1) / plan::kMebibyte * plan::kMebibyte;
  return plan;
}

}  // namespace layerpress::run
