#include "layerpress/plan/memory_plan.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>
#include <utility>

#include "layerpress/graph/facts/original_stream.h"
#include "layerpress/kernels/layers/transformer.h"
#include "layerpress/kernels/products/relative_error.h"
#include "layerpress/plan/planned_stage.h"
#include "layerpress/plan/planned_statistics.h"
#include "layerpress/plan/planned_values.h"
#include "layerpress/plan/planned_weights.h"
#include "layerpress/plan/step_cost.h"
#include "layerpress/quant/block_scheme.h"
#include "layerpress/schedule/group_work.h"
#include "layerpress/schedule/statistics_users.h"
#include "layerpress/schedule/trial_stages.h"

namespace layerpress::plan {
namespace {

/// On a device the originals are copies; on a CPU they are views of the mapped file.
std::uint64_t original_bytes(const PlannedSizes& sizes, const std::vector<compression::LinearShape>& linears) {
  std::uint64_t bytes = 0;
  for (const compression::LinearShape& shape : linears)
    if (shape.computed || !sizes.is_on_host()) bytes += PlannedSizes::bytes_of(shape.rows * shape.columns, shape.dtype);
  return bytes;
}

/// Memory on a device for a moment in which a result is read back; `kept`: the values are counted elsewhere.
std::uint64_t reading_bytes(const compression::LinearShape& shape, bool kept) {
  if (shape.device.is_cpu()) return 0;
  const std::int64_t elements = shape.rows * shape.columns;
  return (kept ? 0 : PlannedSizes::bytes_of(elements, shape.dtype)) +
         std::max(quant::dequantize_workspace(shape.rows, shape.columns, shape.device),
                  kernels::relative_error_workspace(elements, shape.device));
}

std::int64_t longest_sample(const std::vector<execution::Batch>& batches) {
  std::int64_t longest = 0;
  for (const execution::Batch& batch : batches) longest = std::max(longest, kernels::longest_sample(batch.offsets));
  return longest;
}

/// Memory for a candidate of a trial.
struct CandidateBytes {
  std::uint64_t parameters = 0;  ///< in their own dtype and, if it differs, in the computing dtype
  std::uint64_t making = 0;      ///< while they are made, besides
};

CandidateBytes candidate_bytes(const PlannedSizes& sizes, const compression::Assignments& assignments,
                               std::size_t index) {
  const auto& [transform, site] = assignments.transforms[index];
  const auto scheme_of = [&](graph::NodeId linear) { return assignments.scheme_of(linear); };
  CandidateBytes bytes;
  at::ScalarType dtype = at::kFloat;
  for (const graph::ScaleReader& reader : site.place.readers) {
    if (!site.balances(reader)) continue;
    dtype = sizes.stored_dtype(reader.weight);
    bytes.parameters += sizes.stored_weight_bytes(reader.weight);
    if (dtype != sizes.placement().dtype) bytes.parameters += sizes.weight_bytes(reader.weight);
  }
  bytes.making = transform->candidate_workspace(site, sizes.graph(), dtype, sizes.placement().device, scheme_of);
  return bytes;
}

/// Follows a schedule step by step without data and records the peak of memory.
class Simulation {
 public:
  Simulation(const PlanRequest& request, const schedule::Schedule& schedule)
      : request_(request), run_(request.input.run), schedule_(schedule) {}

  MemoryPlan run() {
    for (std::size_t s = 0; s < schedule_.size(); ++s) {
      const schedule::SubgraphSchedule& subgraph = schedule_[s];
      begin(s);
      if (subgraph.batch_by_batch)
        run_batch_by_batch(subgraph);
      else
        for (const schedule::Step& step : subgraph.steps) run_step(subgraph, step);
      weights_.end(subgraph);
    }
    for (const SubgraphPlan& subgraph : plan_.subgraphs) {
      plan_.peak.host = std::max(plan_.peak.host, subgraph.peak.host);
      plan_.peak.device = std::max(plan_.peak.device, subgraph.peak.device);
    }
    return std::move(plan_);
  }

 private:
  SubgraphPlan& own() { return plan_.subgraphs.back(); }

  void begin(std::size_t s) {
    const schedule::SubgraphSchedule& subgraph = schedule_[s];
    plan_.subgraphs.emplace_back();
    scaled_.clear();
    own().name = subgraph.name;
    if (subgraph.finished && !subgraph.steps.empty())
      own().mode = "replay";
    else if (subgraph.recomputes)
      own().mode = "recompute";
    own().statistics_bytes = statistics_.bytes();  // those that an earlier subgraph has left for this one
    const std::size_t next = schedule::next_that_reads(schedule_, s + 1);
    weights_.begin(subgraph, next < schedule_.size() ? schedule_[next].reads : std::vector<std::string>(), own());
    note(weights_.reading_bytes());
  }

  void run_step(const schedule::SubgraphSchedule& subgraph, const schedule::Step& step) {
    if (step.runs()) {
      own().passes.emplace_back();
      const PlannedCollection collection = statistics_.collect(step, own());
      if (!step.statistics.empty() && request_.batches.empty()) note(collection.workspace);
      for (std::size_t b = 0; b < request_.batches.size(); ++b) run_batch(step, b, collection);
    }
    for (const graph::ValueId value : step.drops) drop(value);
    transform(step);
    compress(divider_.divide(subgraph.sharing, step.groups), subgraph.uses_results);
    for (const graph::ValueId value : users_.unused_after(step)) statistics_.drop(value);
  }

  void run_batch_by_batch(const schedule::SubgraphSchedule& subgraph) {
    std::vector<PlannedCollection> collections;
    own().passes.emplace_back();
    for (const schedule::Step& step : subgraph.steps) {
      collections.push_back(statistics_.collect(step, own()));
      if (request_.batches.empty()) note(collections.back().workspace);
    }
    for (std::size_t b = 0; b < request_.batches.size(); ++b)
      for (std::size_t i = 0; i < subgraph.steps.size(); ++i) run_batch(subgraph.steps[i], b, collections[i]);
  }

  /// The parameters that transforms change are held in memory until they are compressed or the subgraph is done.
  void transform(const schedule::Step& step) {
    for (const schedule::TrialStages& trial : step.trials) run_trial(trial);
    for (const std::size_t transform : step.transforms) {
      const graph::ScaleAbsorber& place = run_.assignments.transforms[transform].site.place;
      for (const std::string& name : place.parameters(sizes_.graph())) {
        // Beside the parameter before the change.
        note(sizes_.stored_weight_bytes(name) + compression::scaling_workspace_bytes());
        weights_.change(name, own());
      }
      for (const graph::ScaledValue& scaled : place.values) scaled_.insert(scaled.value);
    }
  }

  void run_trial(const schedule::TrialStages& trial) {
    const compression::TransformSite& site = run_.assignments.transforms[trial.transform].site;
    const auto [candidate, making] = candidate_bytes(sizes_, run_.assignments, trial.transform);
    const auto nothing = [](graph::ValueId) { return std::uint64_t(0); };
    std::uint64_t held = 0;  // values before the tried nodes, and outputs to compare with
    for (std::size_t b = 0; b < request_.batches.size(); ++b) {
      const StageNeeds before = stage_needs(sizes_, request_.batches[b], b, trial.before, nothing);
      const StageNeeds tried = stage_needs(sizes_, request_.batches[b], b, trial.tried, nothing);
      if (held >= schedule::kTrialBytes) held = 0;
      note(held + std::max(before.most, before.frame + tried.most));
      held += before.frame + tried.frame;
      note(held + candidate + std::max(tried.most, making));
      const auto times = static_cast<double>(site.candidates + 1);
      for (const auto& [phase, flops] : before.flops) own().flops[phase] += flops;
      for (const auto& [phase, flops] : tried.flops) own().flops[phase] += times * flops;
      own().forward_bytes += before.forward_bytes + times * tried.forward_bytes;
    }
  }

  /// One batch through a step's stage, also in the original model if it runs.
  void run_batch(const schedule::Step& step, std::size_t b, const PlannedCollection& collection) {
    const std::uint64_t held = statistics_.held_bytes(step, collection, b) + sizes_.copied_bytes(step.stage, b) +
                               sizes_.copied_bytes(step.original, b);
    const auto workspace_of = [&](const std::set<graph::ValueId>& taken) {
      return [&](graph::ValueId value) {
        return taken.count(value) != 0 ? collection.workspace + sizes_.counted_bytes(value, b) : 0;
      };
    };
    const auto original_workspace = [&, of = workspace_of(collection.original)](graph::ValueId value) {
      // The original model's value is divided in fp32.
      return of(value) + (scaled_.contains(value) ? 3 * sizes_.value_bytes(value, b) : 0);
    };
    run_stage(step.stage, b, held, workspace_of(collection.own), /*in_original=*/false);
    if (!step.original.nodes.empty()) run_stage(step.original, b, held, original_workspace, /*in_original=*/true);
    for (const graph::ValueId value : step.drops) values_.drop(value, b);
  }

  /// `held` is the size of values that are in use besides the stage's, or will be when it is done.
  template <typename WorkspaceOf>
  void run_stage(const graph::Stage& stage, std::size_t b, std::uint64_t held, const WorkspaceOf& workspace_of,
                 bool in_original) {
    const auto place = [&](graph::ValueId value) { return in_original ? original_->stored_as(value) : value; };
    StageLoad& load = own().passes.back();
    for (const graph::ValueId input : stage.inputs) {
      own().read_bytes += values_.on_disk(place(input), b);
      if (sizes_.copies()) load.in_bytes += values_.in_memory(place(input), b);
    }
    const StageNeeds needs = stage_needs(sizes_, request_.batches[b], b, stage, workspace_of);
    for (const auto& [phase, flops] : needs.flops) {
      own().flops[in_original && phase == "forward" ? "original" : phase] += flops;
      load.flops += flops;
    }
    own().forward_bytes += needs.forward_bytes;
    own().transient_bytes = std::max(own().transient_bytes, held + needs.most);
    note(held + needs.most);
    std::uint64_t frame = held + needs.frame;
    for (const graph::ValueId value : stage.keeps) {
      if (store(place(value), b)) frame -= sizes_.kept_bytes(value, b);  // now counted by the store
      if (sizes_.copies()) load.out_bytes += values_.in_memory(place(value), b);
      note(frame);
    }
    for (const graph::ValueId value : stage.inputs) note(held + workspace_of(value));
  }

  /// Whether the value stays in memory.
  bool store(graph::ValueId value, std::size_t batch) {
    const std::uint64_t spilled = values_.put(value, batch);
    plan_.spilled_bytes += spilled;
    own().written_bytes += spilled;
    own().activation_bytes = std::max(own().activation_bytes, values_.memory_bytes());
    own().activation_disk_bytes = std::max(own().activation_disk_bytes, values_.disk_bytes());
    return spilled == 0;
  }

  void drop(graph::ValueId value) {
    for (std::size_t b = 0; b < request_.batches.size(); ++b) values_.drop(value, b);
    values_.drop(value);
  }

  /// Modifiers at work on groups of one step. `replace`: the compressed weights are used from here on.
  void compress(const std::vector<schedule::GroupWork>& works, bool replace) {
    const StepCost cost = step_cost(sizes_.graph(), works, run_.assignments);
    for (const auto& [phase, flops] : cost.flops) own().flops[phase] += flops;
    std::uint64_t originals = 0;
    for (const StepCost::Turn& turn : cost.turns) {
      own().workspace_bytes = std::max(own().workspace_bytes, turn.workspace_bytes);
      if (cost.ranks == 1) originals = 0;
      originals += turn.groups * original_bytes(sizes_, turn.linears);
      note(cost.exchange.own + originals + turn.workspace_bytes);
      note_on_host(turn.host_bytes);
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

  /// Results are dequantized, packed and written one after the other, while `held` bytes are in use.
  void use(const std::vector<compression::LinearShape>& linears, std::uint64_t held, bool replace) {
    for (const compression::LinearShape& shape : linears) {
      if (replace) weights_.add_compressed(shape.rows * shape.columns, own());
      note(held + reading_bytes(shape, replace));
      std::uint64_t packed = 0;
      for (const auto& part : quant::compressed_layout(*shape.scheme, shape.rows, shape.columns, shape.dtype)) {
        const std::uint64_t bytes = PlannedSizes::bytes_of(c10::multiply_integers(part.shape), part.dtype);
        own().written_bytes += bytes;
        const bool is_unchanged =
            quant::block_type(*shape.scheme) != nullptr ||
            part.shape == std::vector<std::int64_t>{shape.rows, shape.columns};  // codes of a byte
        if (!is_unchanged) packed += bytes;
      }
      note(held + packed);
    }
  }

  /// Records that `bytes` are in use on the computing device for a moment, besides lasting memory.
  void note(std::uint64_t bytes) {
    Memory now{request_.baseline + weights_.pinned_bytes(), 0};
    (sizes_.is_on_host() ? now.host : now.device) +=
        bytes + statistics_.bytes() + weights_.onloaded_bytes() + rotary_bytes_;
    (request_.activation_home.is_cpu() ? now.host : now.device) += values_.memory_bytes();
    note(now);
  }

  /// The same for bytes on the host while a device computes.
  void note_on_host(std::uint64_t bytes) {
    Memory now{request_.baseline + weights_.pinned_bytes() + bytes, 0};
    if (request_.activation_home.is_cpu()) now.host += values_.memory_bytes();
    note(now);
  }

  void note(const Memory& now) {
    own().peak.host = std::max(own().peak.host, now.host);
    own().peak.device = std::max(own().peak.device, now.device);
  }

  const PlanRequest& request_;
  const setup::RunSetup& run_;
  std::set<graph::ValueId> scaled_;  // of the subgraph, by transforms so far
  const schedule::Schedule& schedule_;
  const PlannedSizes sizes_{request_};
  PlannedWeights weights_{request_, sizes_};
  PlannedStatistics statistics_{request_, sizes_};
  PlannedValues values_{request_, sizes_};
  const schedule::WorkDivider divider_{sizes_.graph(), run_.assignments, run_.ranks, run_.division_rates};
  schedule::StatisticsUsers users_{schedule_, run_.assignments};
  const std::optional<graph::OriginalStream> original_ = schedule::original_stream(sizes_.graph(), run_.assignments);
  const std::uint64_t rotary_bytes_ =
      execution::RotaryTables::kept_bytes(sizes_.graph(), longest_sample(request_.batches));
  MemoryPlan plan_;
};

}  // namespace

MemoryPlan plan_memory(const PlanRequest& request, const schedule::Schedule& schedule) {
  return Simulation(request, schedule).run();
}

}  // namespace layerpress::plan
