#include "layerpress/plan/memory_plan.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <variant>

#include "layerpress/execution/node_execution.h"
#include "layerpress/execution/operation_execution.h"
#include "layerpress/graph/original_stream.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/pipeline/background_sink.h"
#include "layerpress/pipeline/statistics_store.h"
#include "layerpress/plan/step_cost.h"

namespace layerpress::plan {
namespace {

/// Follows a run step by step without data and records the peak of memory.
class Simulation {
 public:
  explicit Simulation(const PlanRequest& request) : request_(request) {}

  /// `compressed` are the weights that are replaced before they are used.
  void begin(const std::string& name, const std::vector<std::string>& weights, const std::set<std::string>& compressed,
             const std::vector<std::string>& original_weights = {}) {
    plan_.subgraphs.emplace_back();
    own().name = name;
    own().statistics_bytes = statistics_bytes_;  // those that an earlier subgraph has left for this one
    for (const std::string& weight : weights) onload(weight, compressed.count(weight) != 0);
    for (const std::string& weight : original_weights)
      if (!can_stay(weight)) onloaded_ += bytes_of(c10::multiply_integers(shape_of(weight)), request_.placement.dtype);
    own().onloaded_bytes = std::max(own().onloaded_bytes, onloaded_);
    note(0);
  }

  /// The contents of pinned host memory from now on: this subgraph's weights, the next subgraph's as they are fetched,
  /// and results waiting to be written.
  void pin(const std::vector<std::string>& weights, const std::vector<std::string>& next) {
    if (request_.placement.device.is_cpu()) return;
    pinned_ = 0;
    for (const std::vector<std::string>* names : {&weights, &next})
      for (const std::string& weight : *names)
        pinned_ += residency::HostCopies::host_bytes(
            bytes_of(c10::multiply_integers(shape_of(weight)), request_.stored_dtype(weight)));
    pinned_ += pipeline::BackgroundSink::kMostBytes;
  }

  /// `kept` and `dropped` are weights as in SubgraphSchedule.
  void end(const std::vector<std::string>& kept = {}, const std::vector<std::string>& dropped = {}) {
    const auto bytes = [&](const std::string& weight) {
      return bytes_of(c10::multiply_integers(shape_of(weight)), request_.placement.dtype);
    };
    for (const std::string& weight : kept) kept_bytes_ += bytes(weight);
    for (const std::string& weight : dropped) kept_bytes_ -= bytes(weight);
    onloaded_ = kept_bytes_;
    changed_.clear();
  }

  /// Runs all batches through a step's stage, also in the original model if it runs.
  void run_stage(const schedule::Step& step) {
    statistics_workspace_ = 0;
    std::set<graph::ValueId> taken, taken_last;  // by the model that runs last for them
    for (const auto& [value, statistics] : step.statistics) {
      hold_statistics(value, statistics);
      const bool original = std::any_of(statistics.begin(), statistics.end(), [value = value](const auto& statistic) {
        return sees_original(*statistic, value);
      });
      (original ? taken_last : taken).insert(value);
    }
    if (!step.statistics.empty() && request_.batches.empty()) note(statistics_workspace_);
    for (std::size_t b = 0; b < request_.batches.size(); ++b) {
      std::uint64_t held = 0;  // until the original model's values are there
      for (const graph::ValueId value : taken_last) held += value_bytes(value, b);
      held += other_source_bytes(step, b) + copied_bytes(step, b);
      run_batch(step.stage, b, taken, held, /*in_original=*/false);
      if (!step.original.nodes.empty()) run_batch(step.original, b, taken_last, held, /*in_original=*/true);
      for (const graph::ValueId value : step.drops) drop(value, b);
    }
    for (const graph::ValueId value : step.drops) values_.erase(value);
  }

  /// Transforms: the parameters that they change are held in memory until they are compressed or the subgraph is done.
  void transform(const std::vector<std::size_t>& transforms) {
    for (const std::size_t transform : transforms)
      for (const std::string& name : request_.assignments.transforms[transform].site.place.parameters(request_.graph)) {
        const std::uint64_t bytes = stored_bytes(name);
        note(bytes + compression::scaling_workspace_bytes());  // beside the parameter before the change
        if (changed_.insert(name).second) onloaded_ += bytes;
      }
    own().onloaded_bytes = std::max(own().onloaded_bytes, onloaded_);
  }

  /// Modifiers at work on groups of one step. `replace`: the compressed weights are used from here on.
  void compress(const std::vector<schedule::GroupWork>& works, bool replace) {
    const StepCost cost = step_cost(request_.graph, works, request_.assignments);
    for (const auto& [phase, flops] : cost.flops) own().flops[phase] += flops;
    std::uint64_t originals = 0;
    for (const StepCost::Turn& turn : cost.turns) {
      own().workspace_bytes = std::max(own().workspace_bytes, turn.workspace_bytes);
      if (cost.ranks == 1) originals = 0;
      originals += turn.groups * original_bytes(turn.linears);
      note(cost.exchange.own + originals + turn.workspace_bytes);
      for (std::size_t group = 0; cost.ranks == 1 && group < turn.groups; ++group)
        use(turn.linears, originals + turn.result_bytes, replace && turn.propagates);
    }
    if (cost.ranks == 1) return;
    note(originals + cost.exchange.trading);
    for (const StepCost::Turn& turn : cost.turns) {
      note(originals + cost.exchange.received + 2 * turn.result_bytes);  // results are concatenated from parts
      use(turn.linears, originals + cost.exchange.received + turn.result_bytes, replace && turn.propagates);
    }
  }

  void drop_statistics(graph::ValueId value) {
    const auto found = statistics_.find(value);
    if (found == statistics_.end()) return;
    statistics_bytes_ -= found->second;
    statistics_.erase(found);
  }

  SubgraphPlan& own() { return plan_.subgraphs.back(); }

  MemoryPlan finish() {
    for (const SubgraphPlan& subgraph : plan_.subgraphs) {
      plan_.peak.host = std::max(plan_.peak.host, subgraph.peak.host);
      plan_.peak.device = std::max(plan_.peak.device, subgraph.peak.device);
    }
    return std::move(plan_);
  }

 private:
  /// Results are dequantized, packed and written one after the other, while `held` bytes are in use.
  void use(const std::vector<compression::LinearShape>& linears, std::uint64_t held, bool replace) {
    for (const compression::LinearShape& shape : linears) {
      if (replace) onloaded_ += bytes_of(shape.rows * shape.columns, request_.placement.dtype);
      std::uint64_t packed = 0, written = 0;
      for (const auto& part : quant::compressed_layout(*shape.scheme, shape.rows, shape.columns, shape.dtype)) {
        const std::uint64_t bytes = bytes_of(c10::multiply_integers(part.shape), part.dtype);
        written += bytes;
        const bool as_it_is =
            part.shape == std::vector<std::int64_t>{shape.rows, shape.columns};  // codes of a byte each
        if (!as_it_is) packed += bytes;
      }
      own().written_bytes += written;
      note(held + packed);
    }
    own().onloaded_bytes = std::max(own().onloaded_bytes, onloaded_);
  }

  std::uint64_t stored_bytes(const std::string& weight) {
    return bytes_of(c10::multiply_integers(shape_of(weight)), request_.stored_dtype(weight));
  }

  /// On a device the originals are copies; on a CPU they are views of the mapped file.
  std::uint64_t original_bytes(const std::vector<compression::LinearShape>& linears) const {
    std::uint64_t bytes = 0;
    if (!request_.placement.device.is_cpu())
      for (const compression::LinearShape& shape : linears) bytes += bytes_of(shape.rows * shape.columns, shape.dtype);
    return bytes;
  }

  struct Stored {
    std::uint64_t bytes = 0;
    bool on_disk = false;
  };

  static std::uint64_t bytes_of(std::int64_t elements, at::ScalarType dtype) {
    return static_cast<std::uint64_t>(elements) * c10::elementSize(dtype);
  }

  /// The statistics of a value that are collected while a stage runs.
  void hold_statistics(graph::ValueId value, const std::vector<compression::StatisticPtr>& statistics) {
    const std::int64_t features = request_.graph.values[value].features;
    const double rows = expected_rows(value);
    std::uint64_t workspace = 0;
    for (const compression::StatisticPtr& statistic : statistics) {
      const std::uint64_t bytes = static_cast<std::uint64_t>(statistic->rows(features) * features) * sizeof(float);
      statistics_[value] += bytes;
      statistics_bytes_ += bytes;
      std::uint64_t own_workspace = statistic->workspace_bytes(features, request_.placement.dtype, request_.threads);
      if (const std::string weight = statistic->weight(); !weight.empty() && !can_stay(weight))
        own_workspace += bytes_of(c10::multiply_integers(shape_of(weight)), request_.placement.dtype);
      workspace = std::max(workspace, own_workspace);
      own().flops[statistic->phase()] += statistic->flops(rows, features, statistic->all_rows(features));
    }
    own().statistics_bytes = std::max(own().statistics_bytes, statistics_bytes_);
    workspace += pipeline::merge_workspace_bytes(statistics, features, request_.ranks);
    statistics_workspace_ = std::max(statistics_workspace_, workspace);
  }

  /// The other sources of statistics, which are held until all sources have been computed, unless they are stored.
  std::uint64_t other_source_bytes(const schedule::Step& step, std::size_t batch) const {
    const auto is_stored = [](const graph::Stage& stage, graph::ValueId value) {
      const auto has = [&](const auto& values) {
        return std::find(values.begin(), values.end(), value) != values.end();
      };
      return has(stage.inputs) || has(stage.keeps);
    };
    std::uint64_t bytes = 0;
    for (const auto& [value, statistics] : step.statistics) {
      std::set<compression::StatisticSource> sources;
      for (const compression::StatisticPtr& statistic : statistics)
        for (const compression::StatisticSource& source : statistic->sources(value)) sources.insert(source);
      for (const compression::StatisticSource& source : sources)
        if (source.value != value && !is_stored(source.original ? step.original : step.stage, source.value))
          bytes += value_bytes(source.value, batch);
    }
    return bytes;
  }

  /// Whether values between stages wait on the host and are copied while a device computes (HostCopies).
  bool copies() const { return request_.activation_home.is_cpu() && !request_.placement.device.is_cpu(); }

  /// Bytes on the device of a step's values that wait on the host: values that the previous batch has read, values that
  /// the next batch will read, and values of the previous batch that are still being copied.
  std::uint64_t copied_bytes(const schedule::Step& step, std::size_t batch) const {
    if (!copies()) return 0;
    std::uint64_t bytes = 0;
    for (const graph::Stage* stage : {&step.stage, &step.original}) {
      for (const graph::ValueId value : stage->inputs)
        if (!request_.graph.is_input(value)) bytes += 3 * kept_bytes(value, batch);
      for (const graph::ValueId value : stage->keeps) bytes += kept_bytes(value, batch);
    }
    return bytes;
  }

  bool can_stay(const std::string& weight) const {
    return request_.placement.device.is_cpu() && request_.stored_dtype(weight) == request_.placement.dtype;
  }

  std::uint64_t value_bytes(graph::ValueId value, std::size_t batch) const {
    const graph::Value& stored = request_.graph.values[graph::OriginalStream::value_of(request_.graph, value)];
    return bytes_of(request_.batches[batch].rows(stored.rows) * stored.features, request_.placement.dtype);
  }

  /// Bytes of a value that a stage keeps. All experts' routed rows together are as many as expected; because their
  /// numbers differ, many are in reused blocks of memory that are larger by up to an eighth.
  std::uint64_t kept_bytes(graph::ValueId stored, std::size_t batch) const {
    const graph::ValueId value = graph::OriginalStream::value_of(request_.graph, stored);
    const graph::NodeId producer = request_.graph.values[value].producer;
    if (producer < 0 || !std::holds_alternative<graph::TakeRouted>(request_.graph.nodes[producer].operation))
      return value_bytes(value, batch);
    const double rows = std::ceil(1.125 * execution::expected_rows(request_.graph, value, request_.batches[batch]));
    return bytes_of(static_cast<std::int64_t>(rows) * request_.graph.values[value].features, request_.placement.dtype);
  }

  void onload(const std::string& weight, bool is_replaced) {
    const std::int64_t elements = c10::multiply_integers(shape_of(weight));
    const at::ScalarType stored = request_.stored_dtype(weight);
    own().weight_bytes += bytes_of(elements, stored);
    own().read_bytes += bytes_of(elements, stored);
    if (is_replaced) return;
    const bool original = !request_.mapped || request_.mapped(weight);
    const bool in_place = can_stay(weight);
    if (!original) note(2 * static_cast<std::uint64_t>(elements));  // packed and unpacked codes while it is read
    if (!in_place || !original) onloaded_ += bytes_of(elements, request_.placement.dtype);
    own().onloaded_bytes = std::max(own().onloaded_bytes, onloaded_);
  }

  const std::vector<std::int64_t>& shape_of(const std::string& weight) {
    if (shapes_.empty())
      for (const graph::Node& node : request_.graph.nodes)
        for (const graph::WeightUse& use : graph::weights_of(node.operation)) shapes_[use.name] = use.shape;
    return shapes_.at(weight);
  }

  /// Records that `bytes` are in use on the computing device for a moment, besides lasting memory.
  void note(std::uint64_t bytes) {
    const std::uint64_t computing = bytes + statistics_bytes_ + onloaded_;
    const bool on_host = request_.placement.device.is_cpu();
    Memory now{request_.baseline + pinned_, 0};
    (on_host ? now.host : now.device) += computing;
    (request_.activation_home.is_cpu() ? now.host : now.device) += stored_memory_;
    own().peak.host = std::max(own().peak.host, now.host);
    own().peak.device = std::max(own().peak.device, now.device);
  }

  /// The number of rows of a value that count in statistics, over all batches.
  double expected_rows(graph::ValueId value) const {
    const graph::Rows kind = request_.graph.values[value].rows;
    double rows = 0;
    for (const execution::Batch& batch : request_.batches)
      rows += kind == graph::Rows::kSelected ? execution::expected_rows(request_.graph, value, batch)
                                             : static_cast<double>(execution::count_of_counted_rows(batch, kind));
    return rows;
  }

  /// If only some rows of a value count, they are copied.
  std::uint64_t counted_bytes(graph::ValueId value, const execution::Batch& batch) const {
    const graph::Value& of = request_.graph.values[value];
    const std::int64_t counted = execution::count_of_counted_rows(batch, of.rows);
    return counted == batch.rows(of.rows) ? 0 : bytes_of(counted * of.features, request_.placement.dtype);
  }

  /// `held` is the size of values that are in use besides the batch's, or will be when it is done.
  void run_batch(const graph::Stage& stage, std::size_t b, const std::set<graph::ValueId>& collect, std::uint64_t held,
                 bool in_original) {
    const execution::Batch& batch = request_.batches[b];
    const auto place = [&](graph::ValueId value) { return in_original ? original_->stored_as(value) : value; };
    std::map<graph::ValueId, int> readers;
    const std::vector<execution::FusedNode> nodes = execution::fused_nodes(request_.graph, stage, request_.placement);
    for (const execution::FusedNode& node : nodes)
      for (const graph::ValueId input : node.inputs) ++readers[input];
    for (const graph::ValueId value : stage.keeps) ++readers[value];
    // Inputs from the store are counted there, or are mapped pages of the scratch file.
    std::set<graph::ValueId> inside;
    std::uint64_t frame = held, most = held;
    const auto takes = [&](graph::ValueId value) {
      return collect.count(value) != 0 ? statistics_workspace_ + counted_bytes(value, batch) : 0;
    };
    for (const graph::ValueId input : stage.inputs) {
      const auto found = values_.find(place(input));
      if (found != values_.end() && found->second[b].on_disk) own().read_bytes += found->second[b].bytes;
    }
    for (const execution::FusedNode& fused : nodes) {
      const graph::Node& node = request_.graph.nodes[fused.node];
      const bool is_kept = std::find(stage.keeps.begin(), stage.keeps.end(), node.output) != stage.keeps.end();
      const std::uint64_t output = is_kept ? kept_bytes(node.output, b) : value_bytes(node.output, b);
      const std::uint64_t workspace =
          execution::node_workspace_bytes(request_.graph, fused, batch, request_.placement, request_.threads);
      most = std::max(most, frame + output + std::max(workspace, takes(node.output)));
      const double flops = execution::node_flops(request_.graph, fused, batch);
      const bool attends = std::holds_alternative<graph::Attention>(node.operation);
      own().flops[attends ? "attention" : in_original ? "original" : "forward"] += flops;
      if (flops == 0) own().forward_bytes += static_cast<double>(output);
      for (const graph::ValueId input : fused.inputs) {
        if (flops == 0) own().forward_bytes += static_cast<double>(value_bytes(input, b));
        if (--readers[input] == 0 && inside.erase(input) != 0) frame -= value_bytes(input, b);
      }
      if (readers[node.output] == 0) continue;
      inside.insert(node.output);
      frame += output;
    }
    own().transient_bytes = std::max(own().transient_bytes, most);
    note(most);
    for (const graph::ValueId value : stage.keeps) {
      put(place(value), b);
      if (!values_[place(value)][b].on_disk) frame -= kept_bytes(value, b);  // now counted by the store
      note(frame);
    }
    for (const graph::ValueId value : stage.inputs) note(held + takes(value));
  }

  void put(graph::ValueId value, std::size_t batch) {
    auto& stored = values_[value];
    stored.resize(request_.batches.size());
    Stored& slot = stored[batch];
    slot.bytes = copies() ? residency::HostCopies::host_bytes(kept_bytes(value, batch)) : kept_bytes(value, batch);
    slot.on_disk = slot.bytes > request_.activation_limit || stored_memory_ > request_.activation_limit - slot.bytes;
    if (slot.on_disk) {
      stored_disk_ += slot.bytes;
      plan_.spilled_bytes += slot.bytes;
      own().written_bytes += slot.bytes;
    } else {
      stored_memory_ += slot.bytes;
    }
    own().activation_bytes = std::max(own().activation_bytes, stored_memory_);
    own().activation_disk_bytes = std::max(own().activation_disk_bytes, stored_disk_);
  }

  void drop(graph::ValueId value, std::size_t batch) {
    const auto found = values_.find(value);
    if (found == values_.end()) return;
    Stored& slot = found->second[batch];
    (slot.on_disk ? stored_disk_ : stored_memory_) -= slot.bytes;
    slot = Stored();
  }

  const PlanRequest& request_;
  std::optional<graph::OriginalStream> original_ = schedule::original_stream(request_.graph, request_.assignments);
  MemoryPlan plan_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::map<graph::ValueId, std::vector<Stored>> values_;
  std::map<graph::ValueId, std::uint64_t> statistics_;  // bytes
  std::set<std::string> changed_;                       // parameters that transforms have changed
  std::uint64_t statistics_bytes_ = 0, statistics_workspace_ = 0, onloaded_ = 0, kept_bytes_ = 0;
  std::uint64_t stored_memory_ = 0, stored_disk_ = 0, pinned_ = 0;
};

std::vector<std::string> weights_of_groups(const graph::Graph& graph, const std::vector<graph::LinearGroup>& groups) {
  std::vector<graph::NodeId> nodes;
  for (const graph::LinearGroup& group : groups) nodes.insert(nodes.end(), group.linears.begin(), group.linears.end());
  return graph::weight_names(graph, nodes);
}

/// Whether a transform's statistics are computed with a weight before it is compressed.
bool runs_before(const PlanRequest& request, const schedule::SubgraphSchedule& subgraph, const std::string& weight) {
  for (const std::size_t transform : subgraph.transforms()) {
    const graph::Node& source = request.graph.nodes[request.assignments.transforms[transform].site.place.source];
    for (const graph::WeightUse& use : graph::weights_of(source.operation))
      if (use.name == weight) return true;
  }
  return false;
}

/// Whether later nodes compute with the original weight of a compressed linear.
bool stays(const PlanRequest& request, const std::string& weight) {
  return std::any_of(request.assignments.linears.begin(), request.assignments.linears.end(), [&](const auto& entry) {
    return !entry.second.propagates &&
           graph::weight_matrix(request.graph.nodes[entry.first].operation).value().weight == weight;
  });
}

/// The remaining part of a step whose stage does not run.
schedule::Step only_dropping(const schedule::Step& step) {
  schedule::Step left;
  left.drops = step.drops;
  return left;
}

}  // namespace

MemoryPlan plan_sequential(const PlanRequest& request, const std::vector<schedule::SubgraphSchedule>& schedule) {
  Simulation simulation(request);
  const schedule::WorkDivider divider(request.graph, request.assignments,
                                      {.ranks = request.ranks, .rates = request.division_rates});
  std::map<graph::ValueId, int> users;
  for (const schedule::SubgraphSchedule& subgraph : schedule)
    for (const schedule::Step& step : subgraph.steps)
      for (const graph::ValueId value : schedule::statistics_used(step, request.assignments)) ++users[value];
  for (std::size_t s = 0; s < schedule.size(); ++s) {
    const schedule::SubgraphSchedule& subgraph = schedule[s];
    std::vector<std::string> replaced = weights_of_groups(request.graph, subgraph.groups());
    std::erase_if(replaced, [&](const std::string& name) {
      return runs_before(request, subgraph, name) || stays(request, name);
    });
    simulation.pin(subgraph.weights, s + 1 < schedule.size() ? schedule[s + 1].weights : std::vector<std::string>());
    simulation.begin(subgraph.name, subgraph.weights, {replaced.begin(), replaced.end()}, subgraph.original_weights);
    if (subgraph.finished)
      simulation.own().mode = "replay";
    else if (subgraph.recomputes)
      simulation.own().mode = "recompute";
    for (const schedule::Step& step : subgraph.steps) {
      simulation.run_stage(step.runs() ? step : only_dropping(step));
      simulation.transform(step.transforms);
      simulation.compress(divider.divide(step.groups), /*replace=*/true);
      for (const graph::ValueId value : schedule::statistics_used(step, request.assignments))
        if (--users[value] == 0) simulation.drop_statistics(value);
    }
    simulation.end(subgraph.kept_weights, subgraph.dropped_weights);
  }
  return simulation.finish();
}

MemoryPlan plan_basic(const PlanRequest& request, const std::vector<graph::Subgraph>& subgraphs,
                      const std::vector<bool>& finished) {
  Simulation simulation(request);
  const schedule::ValueStatistics statistics(request.graph, request.assignments);
  const schedule::WorkDivider divider(request.graph, request.assignments,
                                      {.ranks = request.ranks, .rates = request.division_rates, .everywhere = true});
  std::vector<schedule::Step> steps;  // all work on each subgraph
  std::map<graph::ValueId, int> users;
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    steps.emplace_back();
    if (finished.empty() || !finished[s]) {
      steps[s].groups = schedule::assigned_groups(request.graph, subgraphs[s], request.assignments);
      steps[s].transforms = schedule::transforms_of(subgraphs[s], request.assignments);
      steps[s].observed = schedule::observed_values(schedule::stored_of(subgraphs[s], request.assignments),
                                                    steps[s].groups, request.assignments);
    }
    for (const graph::ValueId value : schedule::statistics_used(steps[s], request.assignments)) ++users[value];
  }
  std::vector<std::vector<graph::ValueId>> wanted;
  for (const auto& [value, count] : users) wanted.push_back({value});
  graph::Subgraph whole{"calibration", {}};
  for (std::size_t n = 0; n < request.graph.nodes.size(); ++n) whole.nodes.push_back(static_cast<graph::NodeId>(n));
  const std::vector<graph::Stage> stages = graph::split_stages(request.graph, whole, wanted, {});
  std::vector<graph::NodeId> nodes;
  for (const graph::Stage& stage : stages) nodes.insert(nodes.end(), stage.nodes.begin(), stage.nodes.end());
  simulation.begin("calibration", graph::weight_names(request.graph, nodes), {});
  // Here all batches pass through one stage; in the pipeline, one batch passes through all stages. Both keep the same
  // values at once.
  for (std::size_t s = 0; s < wanted.size(); ++s) {
    schedule::Step step;
    step.stage = stages[s];
    step.drops = stages[s].inputs;
    step.drops.insert(step.drops.end(), stages[s].keeps.begin(), stages[s].keeps.end());
    step.statistics.emplace(wanted[s].front(), statistics.of(wanted[s].front()));
    simulation.run_stage(step);
  }
  simulation.end();
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    const std::vector<std::string> weights = weights_of_groups(request.graph, steps[s].groups);
    simulation.begin(subgraphs[s].name, weights, {weights.begin(), weights.end()});
    simulation.transform(steps[s].transforms);
    for (const std::size_t transform : steps[s].transforms)
      for (const auto& [value, wanted_here] : request.assignments.transforms[transform].site.statistics)
        if (--users[value] == 0) simulation.drop_statistics(value);
    for (const std::vector<graph::LinearGroup>& step : schedule::in_steps(request.graph, statistics, steps[s].groups)) {
      simulation.compress(divider.divide(step), /*replace=*/false);
      for (const graph::LinearGroup& group : step)
        if (schedule::wants_statistics(group, request.assignments) && --users[group.input] == 0)
          simulation.drop_statistics(group.input);
    }
    for (const graph::ValueId value : steps[s].observed)
      if (--users[value] == 0) simulation.drop_statistics(value);
    simulation.end();
  }
  return simulation.finish();
}

MemoryPlan plan_datafree(const PlanRequest& request, const std::vector<graph::Subgraph>& subgraphs,
                         const std::vector<bool>& finished) {
  Simulation simulation(request);
  const schedule::WorkDivider divider(request.graph, request.assignments, {.everywhere = true});
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    simulation.begin(subgraphs[s].name, {}, {});
    if (!finished.empty() && finished[s]) continue;
    const auto groups = schedule::assigned_groups(request.graph, subgraphs[s], request.assignments);
    std::uint64_t read = 0;
    for (const graph::LinearGroup& group : groups)
      for (const graph::NodeId n : group.linears) {
        if (request.owns && !request.owns(n)) continue;
        simulation.compress(divider.divide({{group.input, {n}}}), /*replace=*/false);
        const graph::WeightMatrix matrix = graph::weight_matrix(request.graph.nodes[n].operation).value();
        read += static_cast<std::uint64_t>(matrix.rows * matrix.columns) *
                c10::elementSize(request.stored_dtype(matrix.weight));
      }
    simulation.own().weight_bytes = read;
    simulation.own().read_bytes += read;
    simulation.end();
  }
  return simulation.finish();
}

}  // namespace layerpress::plan
