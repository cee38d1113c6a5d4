#include "layerpress/run/precision/disturbed_models.h"

#include <algorithm>
#include <set>

#include "layerpress/graph/partition.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/setup/opening/open_model.h"

namespace layerpress::run {

setup::RunSetup served_setup(const Rank& rank, const setup::RunSetup& measured) {
  const OneshotOptions& options = rank.options;
  const bool is_imported = !measured.model.traced.computing_dtype.empty();
  setup::RunSetup served;
  served.threads = measured.threads, served.ranks = measured.ranks;
  served.pipeline = measured.pipeline;
  served.model = setup::open_model(options.model,
                                   {.tokens = setup::ExpertTokens::kRouted,
                                    .graph = options.model_graph,
                                    .trust_remote_code = options.trust_remote_code,
                                    .device = options.device,
                                    .dtype = is_imported ? options.dtype : "fp32",
                                    .in_memory = options.model_in_memory,
                                    .dequantize_for_computing = true},
                                   rank.control);
  served.subgraphs = setup::cut_model(served.model.traced, {});
  served.placement = measured.placement;
  if (served.model.traced.computing_dtype.empty()) served.placement.dtype = at::kFloat;
  served.place = measured.place;
  served.budget = measured.budget, served.device_budget = measured.device_budget;
  return served;
}

std::set<std::string> linear_modules(const graph::Graph& graph, const std::vector<graph::NodeId>& nodes) {
  std::set<std::string> modules;  // a tied head's weight is the embedding's, too
  for (const graph::NodeId n : nodes)
    if (graph::is_linear(graph.nodes[n].operation)) modules.insert(graph.module_name(graph.nodes[n]));
  return modules;
}

std::vector<std::pair<std::string, const compression::Quantizer*>> modules_of(const std::set<std::string>& here,
                                                                              const std::vector<Disturbance>& model) {
  std::vector<std::pair<std::string, const compression::Quantizer*>> modules;
  for (const Disturbance& disturbance : model)
    for (const std::string& module : disturbance.modules)
      if (here.count(module) != 0) modules.emplace_back(module, disturbance.rounding);
  return modules;
}

std::map<std::string, graph::WeightMatrix> matrices_of(const graph::Graph& graph) {
  std::map<std::string, graph::WeightMatrix> matrices;
  for (const graph::Node& node : graph.nodes)
    if (graph::is_linear(node.operation))
      matrices.emplace(graph.module_name(node), *graph::weight_matrix(node.operation));
  return matrices;
}

std::int64_t divergence_chunk(const graph::Graph& graph) {
  constexpr std::int64_t kLogits = 4 << 20;
  return std::clamp<std::int64_t>(kLogits / graph.values[graph.output].features, 1, kDivergenceSample);
}

}  // namespace layerpress::run
