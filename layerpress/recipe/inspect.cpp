#include "layerpress/inspect.h"

#include <set>

#include "layerpress/graph/text.h"
#include "layerpress/oneshot.h"
#include "layerpress/recipe/open_model.h"

namespace layerpress {
namespace {

/// Parameters and stored bytes of weights, each counted once.
class WeightCount {
 public:
  explicit WeightCount(const recipe::OpenedModel& model) : model_(model) {}

  void add(const graph::WeightUse& use) {
    if (!seen_.insert(use.name).second) return;
    std::int64_t numel = 1;
    for (const std::int64_t size : use.shape) numel *= size;
    parameters += numel;
    if (model_.checkpoint->contains(use.name)) {
      bytes += model_.checkpoint->spec(use.name).nbytes();
      return;
    }
    const std::string module = use.name.substr(0, use.name.rfind('.'));
    for (const char* suffix : {"weight_packed", "weight_scale", "weight_zero_point", "weight_shape"})
      if (model_.checkpoint->contains(module + "." + suffix))
        bytes += model_.checkpoint->spec(module + "." + suffix).nbytes();
  }

  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;

 private:
  const recipe::OpenedModel& model_;
  std::set<std::string> seen_;
};

Json describe(const recipe::OpenedModel& model, const graph::Subgraph& subgraph) {
  const graph::Graph& graph = model.traced.graph;
  WeightCount count(model);
  for (const graph::NodeId n : subgraph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation)) count.add(use);
  Json groups = Json::array();
  for (const graph::LinearGroup& group :
       graph::linear_groups(graph, subgraph, [](const graph::Node&) { return true; })) {
    Json modules = Json::array(), out_features = Json::array();
    for (const graph::NodeId n : group.linears) {
      modules.push_back(graph.module_name(graph.nodes[n]));
      out_features.push_back(std::get<graph::Linear>(graph.nodes[n].operation).out_features);
    }
    groups.push_back({{"modules", std::move(modules)},
                      {"in_features", graph.values[group.input].features},
                      {"out_features", std::move(out_features)}});
  }
  return {{"name", subgraph.name},
          {"nodes", subgraph.nodes.size()},
          {"parameters", count.parameters},
          {"bytes", count.bytes},
          {"linear_groups", std::move(groups)}};
}

OneshotOptions planned_run(const InspectOptions& options) {
  OneshotOptions run;
  run.model = options.model;
  run.output = options.model;  // written to the same disk, say
  run.recipe = options.recipe;
  run.algorithm = options.algorithm;
  run.scheme = options.scheme;
  run.group_size = options.group_size;
  run.num_calibration_samples = options.num_calibration_samples;
  run.max_seq_length = options.max_seq_length;
  run.pipeline = options.pipeline;
  run.sequential_targets = options.sequential_targets;
  run.sequential_targets_per_subgraph = options.sequential_targets_per_subgraph;
  run.batch_tokens = options.batch_tokens;
  run.memory_budget = options.memory_budget;
  run.sequential_offload_device = options.sequential_offload_device;
  run.threads = options.threads;
  return run;
}

}  // namespace

Json inspect(const InspectOptions& options) {
  if (options.plan) return {{"plan", plan_oneshot(planned_run(options))}};
  const recipe::OpenedModel model = recipe::open_model(options.model);
  if (options.graph) return {{"graph", graph::to_text(model.traced.graph)}};
  WeightCount total(model);
  for (const graph::Node& node : model.traced.graph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) total.add(use);
  Json subgraphs = Json::array();
  for (const graph::Subgraph& subgraph :
       recipe::cut_model(model.traced, options.sequential_targets, options.sequential_targets_per_subgraph))
    subgraphs.push_back(describe(model, subgraph));
  const Json& quantization = model.checkpoint->quantization_config();
  return {{"model", model.checkpoint->directory().string()},
          {"architecture", model.architecture},
          {"parameters", total.parameters},
          {"bytes", total.bytes},
          {"quantization", quantization.is_null() ? Json() : quantization.value("format", Json())},
          {"subgraphs", std::move(subgraphs)}};
}

}  // namespace layerpress
