#include "layerpress/runtime/memory_plan.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <set>

#include "layerpress/kernels/gram.h"
#include "layerpress/runtime/divided_compression.h"
#include "layerpress/runtime/group_compression.h"
#include "layerpress/runtime/node_execution.h"
#include "layerpress/runtime/statistics_store.h"

namespace layerpress::runtime {
namespace {

/// Follows a run step by step without data and notes the most memory held at once.
class Simulation {
 public:
  explicit Simulation(const PlanRequest& request) : request_(request) {
    for (const Batch& batch : request_.batches) tokens_ += static_cast<double>(batch.tokens());
  }

  /// `compressed`: weights that are replaced before anything computes with them.
  void begin(const std::string& name, const std::vector<std::string>& weights,
             const std::set<std::string>& compressed) {
    plan_.subgraphs.emplace_back();
    own().name = name;
    own().gram_bytes = gram_bytes_;  // those that an earlier subgraph has left for this one
    onloaded_ = 0;
    for (const std::string& weight : weights) onload(weight, compressed.count(weight) != 0);
    note(0);
  }

  void end() { onloaded_ = 0; }

  /// All batches through a stage.
  void run_stage(const graph::Stage& stage, const std::vector<graph::ValueId>& drops, bool collect) {
    if (collect && grams_.count(stage.wanted) == 0) {
      const auto features = static_cast<std::uint64_t>(request_.graph.values[stage.wanted].features);
      grams_[stage.wanted] = features * features * sizeof(float);
      gram_bytes_ += grams_[stage.wanted];
      own().gram_bytes = std::max(own().gram_bytes, gram_bytes_);
      own().flops["gram"] += tokens_ * static_cast<double>(features * (features + 1));
      gram_workspace_ = kernels::gram_workspace_bytes(static_cast<std::int64_t>(features), request_.placement.dtype);
      if (request_.ranks > 1) gram_workspace_ += merge_workspace_bytes(static_cast<std::int64_t>(features));
    }
    if (collect && request_.batches.empty()) note(gram_workspace_);
    for (std::size_t b = 0; b < request_.batches.size(); ++b) {
      run_batch(stage, b, collect);
      for (const graph::ValueId value : drops) drop(value, b);
    }
    for (const graph::ValueId value : drops) values_.erase(value);
  }

  /// A modifier at work on a group, divided among ranks or not. `replace`: the compressed weights are used from here on.
  void compress(const graph::LinearGroup& group, bool replace, bool divide) {
    std::map<const Modifier*, std::vector<LinearShape>> by_modifier;
    for (const graph::NodeId n : group.linears) {
      by_modifier[request_.assignments.at(n).modifier].push_back(
          runtime::shape_of(request_.graph, n, request_.assignments));
    }
    for (const auto& [modifier, shapes] : by_modifier) {
      const int ranks = divide ? request_.ranks : 1;
      const GroupDivision division = divide_group(*modifier, shapes, ranks, /*owner=*/0, request_.division_rates);
      const CompressionCost cost = largest_cost(*modifier, shapes, division);
      const std::uint64_t exchange = exchange_workspace_bytes(shapes, division);
      own().workspace_bytes = std::max(own().workspace_bytes, cost.workspace_bytes);
      for (const auto& [phase, flops] : cost.flops) own().flops[phase] += flops;
      // On a device the originals are copies; on a CPU they are views of the mapped file.
      std::uint64_t held = 0;
      if (!request_.placement.device.is_cpu())
        for (const LinearShape& shape : shapes) held += bytes_of(shape.rows * shape.columns, shape.dtype);
      note(held + cost.workspace_bytes);
      std::uint64_t results = cost.result_bytes;
      if (ranks > 1) {
        results = 0;
        for (const LinearShape& shape : shapes)
          results += quant::quantized_bytes(*shape.scheme->weights, shape.rows, shape.columns, shape.dtype);
        note(held + exchange + std::max(cost.result_bytes, 2 * results));  // joined from parts
      }
      for (const LinearShape& shape : shapes) {
        if (replace) held += bytes_of(shape.rows * shape.columns, request_.placement.dtype);
        std::uint64_t packed = 0, written = 0;
        for (const auto& part : quant::compressed_layout(*shape.scheme, shape.rows, shape.columns, shape.dtype)) {
          const std::uint64_t bytes = bytes_of(c10::multiply_integers(part.shape), part.dtype);
          written += bytes;
          if (part.suffix != "weight") packed += bytes;  // plain codes go out as they are
        }
        own().written_bytes += written;
        note(results + held + packed);
      }
      for (const LinearShape& shape : shapes)
        if (replace) onloaded_ += bytes_of(shape.rows * shape.columns, request_.placement.dtype);
      own().onloaded_bytes = std::max(own().onloaded_bytes, onloaded_);
    }
  }

  void drop_gram(graph::ValueId value) {
    const auto found = grams_.find(value);
    if (found == grams_.end()) return;
    gram_bytes_ -= found->second;
    grams_.erase(found);
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
  /// What the rank with the most rows has to do.
  static CompressionCost largest_cost(const Modifier& modifier, const std::vector<LinearShape>& shapes,
                                      const GroupDivision& division) {
    const auto rows_of = [](const std::vector<RowPart>& parts) {
      std::int64_t rows = 0;
      for (const RowPart& part : parts) rows += part.rows();
      return rows;
    };
    const auto most = std::max_element(division.parts.begin(), division.parts.end(),
                                       [&](const auto& a, const auto& b) { return rows_of(a) < rows_of(b); });
    std::vector<LinearShape> own;
    for (const RowPart& part : *most) {
      own.push_back(shapes[part.linear]);
      own.back().rows = part.rows();
    }
    return modifier.cost(own);
  }

  struct Stored {
    std::uint64_t bytes = 0;
    bool on_disk = false;
  };

  static std::uint64_t bytes_of(std::int64_t elements, at::ScalarType dtype) {
    return static_cast<std::uint64_t>(elements) * c10::elementSize(dtype);
  }

  std::uint64_t value_bytes(graph::ValueId value, std::size_t batch) const {
    return bytes_of(request_.batches[batch].tokens() * request_.graph.values[value].features, request_.placement.dtype);
  }

  void onload(const std::string& weight, bool is_replaced) {
    const std::int64_t elements = c10::multiply_integers(shape_of(weight));
    const at::ScalarType stored = request_.stored_dtype(weight);
    own().weight_bytes += bytes_of(elements, stored);
    own().read_bytes += bytes_of(elements, stored);
    if (is_replaced) return;
    const bool original = !request_.mapped || request_.mapped(weight);
    const bool in_place = request_.placement.device.is_cpu() && stored == request_.placement.dtype;
    if (!original) note(2 * static_cast<std::uint64_t>(elements));  // packed and unpacked codes while it is read back
    if (!in_place || !original) onloaded_ += bytes_of(elements, request_.placement.dtype);
    own().onloaded_bytes = std::max(own().onloaded_bytes, onloaded_);
  }

  const std::vector<std::int64_t>& shape_of(const std::string& weight) {
    if (shapes_.empty())
      for (const graph::Node& node : request_.graph.nodes)
        for (const graph::WeightUse& use : graph::weights_of(node.operation)) shapes_[use.name] = use.shape;
    return shapes_.at(weight);
  }

  /// Something of `bytes` is held on the computing device right now, beside what lasts.
  void note(std::uint64_t bytes) {
    const std::uint64_t computing = bytes + gram_bytes_ + onloaded_;
    const bool on_host = request_.placement.device.is_cpu();
    Memory now{request_.baseline, 0};
    (on_host ? now.host : now.device) += computing;
    (request_.activation_home.is_cpu() ? now.host : now.device) += stored_memory_;
    own().peak.host = std::max(own().peak.host, now.host);
    own().peak.device = std::max(own().peak.device, now.device);
  }

  void run_batch(const graph::Stage& stage, std::size_t b, bool collect) {
    const Batch& batch = request_.batches[b];
    std::map<graph::ValueId, int> readers;
    for (const graph::NodeId n : stage.nodes)
      for (const graph::ValueId input : request_.graph.nodes[n].inputs) ++readers[input];
    for (const graph::ValueId value : stage.keeps) ++readers[value];
    if (stage.wanted >= 0) ++readers[stage.wanted];
    // Inputs from the store are counted there, or are mapped pages of the scratch file.
    std::set<graph::ValueId> inside;
    std::uint64_t frame = 0, most = 0;
    for (const graph::ValueId input : stage.inputs) {
      const auto found = values_.find(input);
      if (found != values_.end() && found->second[b].on_disk) own().read_bytes += found->second[b].bytes;
    }
    for (const graph::NodeId n : stage.nodes) {
      const graph::Node& node = request_.graph.nodes[n];
      const std::uint64_t output = value_bytes(node.output, b);
      most = std::max(most, frame + output + node_workspace_bytes(node, batch, request_.placement, request_.threads));
      const double flops = node_flops(node, batch);
      own().flops[std::holds_alternative<graph::Attention>(node.operation) ? "attention" : "forward"] += flops;
      if (flops == 0) own().forward_bytes += static_cast<double>(output);
      for (const graph::ValueId input : node.inputs) {
        if (input == graph::Graph::kInput) continue;
        if (flops == 0) own().forward_bytes += static_cast<double>(value_bytes(input, b));
        if (--readers[input] == 0 && inside.erase(input) != 0) frame -= value_bytes(input, b);
      }
      inside.insert(node.output);
      frame += output;
    }
    own().transient_bytes = std::max(own().transient_bytes, most);
    note(most);
    for (const graph::ValueId value : stage.keeps) {
      put(value, b);
      if (!values_[value][b].on_disk) frame -= value_bytes(value, b);  // now counted by the store
      note(frame);
    }
    if (!collect) return;
    const bool held =
        inside.count(stage.wanted) != 0 && (values_.count(stage.wanted) == 0 || values_[stage.wanted][b].on_disk);
    note((held ? value_bytes(stage.wanted, b) : 0) + gram_workspace_);
  }

  void put(graph::ValueId value, std::size_t batch) {
    auto& stored = values_[value];
    stored.resize(request_.batches.size());
    Stored& slot = stored[batch];
    slot.bytes = value_bytes(value, batch);
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
  MemoryPlan plan_;
  std::map<std::string, std::vector<std::int64_t>> shapes_;
  std::map<graph::ValueId, std::vector<Stored>> values_;
  std::map<graph::ValueId, std::uint64_t> grams_;
  std::uint64_t gram_bytes_ = 0, gram_workspace_ = 0, onloaded_ = 0;
  std::uint64_t stored_memory_ = 0, stored_disk_ = 0;
  double tokens_ = 0;
};

std::vector<std::string> weights_of_groups(const graph::Graph& graph, const std::vector<graph::LinearGroup>& groups) {
  std::vector<graph::NodeId> nodes;
  for (const graph::LinearGroup& group : groups) nodes.insert(nodes.end(), group.linears.begin(), group.linears.end());
  return weight_names(graph, nodes);
}

/// Groups of values that still want statistics, counted.
std::map<graph::ValueId, int> users_of(const std::vector<graph::LinearGroup>& groups, const Assignments& assignments) {
  std::map<graph::ValueId, int> users;
  for (const graph::LinearGroup& group : groups)
    if (wants_gram(group, assignments)) ++users[group.input];
  return users;
}

}  // namespace

MemoryPlan plan_sequential(const PlanRequest& request, const std::vector<SubgraphSchedule>& schedule) {
  Simulation simulation(request);
  std::vector<graph::LinearGroup> all;
  for (const SubgraphSchedule& subgraph : schedule)
    all.insert(all.end(), subgraph.groups.begin(), subgraph.groups.end());
  std::map<graph::ValueId, int> users = users_of(all, request.assignments);
  std::set<graph::ValueId> collected;
  for (const SubgraphSchedule& subgraph : schedule) {
    const std::vector<std::string> replaced = weights_of_groups(request.graph, subgraph.groups);
    simulation.begin(subgraph.name, subgraph.weights, {replaced.begin(), replaced.end()});
    if (subgraph.finished)
      simulation.own().mode = "replay";
    else if (subgraph.recomputes)
      simulation.own().mode = "recompute";
    for (std::size_t g = 0; g < subgraph.stages.size(); ++g) {
      const graph::LinearGroup* group = g < subgraph.groups.size() ? &subgraph.groups[g] : nullptr;
      const bool wants = group != nullptr && wants_gram(*group, request.assignments);
      const bool collect = wants && collected.insert(group->input).second;
      if (collect || !subgraph.stages[g].keeps.empty())
        simulation.run_stage(subgraph.stages[g], subgraph.drops[g], collect);
      else
        simulation.run_stage({}, subgraph.drops[g], false);
      if (group == nullptr) continue;
      simulation.compress(*group, /*replace=*/true, /*divide=*/true);
      if (wants && --users[group->input] == 0) simulation.drop_gram(group->input);
    }
    simulation.end();
  }
  return simulation.finish();
}

MemoryPlan plan_basic(const PlanRequest& request, const std::vector<graph::Subgraph>& subgraphs,
                      const std::vector<bool>& finished) {
  Simulation simulation(request);
  std::vector<std::vector<graph::LinearGroup>> groups;
  std::vector<graph::LinearGroup> all, wanted;
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    groups.emplace_back();
    if (finished.empty() || !finished[s]) groups[s] = assigned_groups(request.graph, subgraphs[s], request.assignments);
    all.insert(all.end(), groups.back().begin(), groups.back().end());
  }
  std::map<graph::ValueId, int> users = users_of(all, request.assignments);
  for (const auto& [value, count] : users) wanted.push_back({value, {}});
  graph::Subgraph whole{"calibration", {}};
  for (std::size_t n = 0; n < request.graph.nodes.size(); ++n) whole.nodes.push_back(static_cast<graph::NodeId>(n));
  const std::vector<graph::Stage> stages = graph::split_stages(request.graph, whole, wanted, {});
  std::vector<graph::NodeId> nodes;
  for (const graph::Stage& stage : stages) nodes.insert(nodes.end(), stage.nodes.begin(), stage.nodes.end());
  simulation.begin("calibration", weight_names(request.graph, nodes), {});
  // All batches pass one stage here and all stages one batch there; what is kept goes at once in both.
  for (std::size_t s = 0; s < wanted.size(); ++s) {
    std::vector<graph::ValueId> drops = stages[s].inputs;
    drops.insert(drops.end(), stages[s].keeps.begin(), stages[s].keeps.end());
    simulation.run_stage(stages[s], drops, true);
  }
  simulation.end();
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    const std::vector<std::string> weights = weights_of_groups(request.graph, groups[s]);
    simulation.begin(subgraphs[s].name, weights, {weights.begin(), weights.end()});
    for (const graph::LinearGroup& group : groups[s]) {
      simulation.compress(group, /*replace=*/false, /*divide=*/true);
      if (users.count(group.input) != 0 && --users[group.input] == 0) simulation.drop_gram(group.input);
    }
    simulation.end();
  }
  return simulation.finish();
}

MemoryPlan plan_datafree(const PlanRequest& request, const std::vector<graph::Subgraph>& subgraphs,
                         const std::vector<bool>& finished) {
  Simulation simulation(request);
  for (std::size_t s = 0; s < subgraphs.size(); ++s) {
    simulation.begin(subgraphs[s].name, {}, {});
    if (!finished.empty() && finished[s]) continue;
    const auto groups = assigned_groups(request.graph, subgraphs[s], request.assignments);
    std::uint64_t read = 0;
    for (const graph::LinearGroup& group : groups)
      for (const graph::NodeId n : group.linears) {
        if (request.owns && !request.owns(n)) continue;
        simulation.compress({group.input, {n}}, /*replace=*/false, /*divide=*/false);
        const auto& linear = std::get<graph::Linear>(request.graph.nodes[n].operation);
        read += static_cast<std::uint64_t>(linear.in_features * linear.out_features) *
                c10::elementSize(request.stored_dtype(linear.weight));
      }
    simulation.own().weight_bytes = read;
    simulation.own().read_bytes += read;
    simulation.end();
  }
  return simulation.finish();
}

}  // namespace layerpress::runtime
