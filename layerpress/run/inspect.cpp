#include "layerpress/inspect.h"

#include <filesystem>
#include <set>
#include <utility>

#include "layerpress/base/file.h"
#include "layerpress/base/files/missing_folder.h"
#include "layerpress/base/files/temporary_directory.h"
#include "layerpress/base/system/child_process.h"
#include "layerpress/graph/drawing/drawing.h"
#include "layerpress/graph/text.h"
#include "layerpress/graph/weight_matrix.h"
#include "layerpress/oneshot.h"
#include "layerpress/run/compression/own_files.h"
#include "layerpress/run/compression/run_together.h"
#include "layerpress/run/decisions/sensitivity.h"
#include "layerpress/run/results/hub_transfers.h"
#include "layerpress/setup/opening/hub.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/setup/rank_agreement.h"

namespace layerpress {
namespace {

/// Parameters and stored bytes of weights, each counted once.
class WeightCount {
 public:
  explicit WeightCount(const setup::OpenedModel& model) : model_(model) {}

  void add(const graph::WeightUse& use) {
    if (!seen_.insert(use.name).second) return;
    std::int64_t numel = 1;
    for (const std::int64_t size : use.shape) numel *= size;
    parameters += numel;
    bytes += model_.checkpoint->stored_bytes(use.name);
    if (model_.quantized.count(use.name) == 0) return;
    dequantized_bytes += model_.checkpoint->spec(use.name).nbytes();
    ++quantized;
  }

  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;              ///< as stored
  std::int64_t quantized = 0;           ///< weights that are stored quantized
  std::uint64_t dequantized_bytes = 0;  ///< theirs while they are onloaded

 private:
  const setup::OpenedModel& model_;
  std::set<std::string> seen_;
};

Json describe(const setup::OpenedModel& model, const graph::Subgraph& subgraph) {
  const graph::Graph& graph = model.traced.graph;
  WeightCount count(model);
  for (const graph::NodeId n : subgraph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(graph.nodes[n].operation)) count.add(use);
  Json groups = Json::array();
  for (const graph::LinearGroup& group : graph::linear_groups(
           graph, subgraph, [](const graph::Node& node) { return graph::is_linear(node.operation); })) {
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
          {"dequantized_bytes", count.dequantized_bytes},
          {"linear_groups", std::move(groups)}};
}

/// Graphviz's layout of `dot`. It is written to a file, because only the end of a child's output is kept.
std::string as_svg(const std::string& dot, const RunControl& control) {
  const TemporaryDirectory directory;
  const std::filesystem::path picture = directory.path() / "picture.svg";
  const ChildResult result =
      run_child({{"dot", "-Tsvg", "-o", picture.string()},
                 dot,
                 "--svg needs Graphviz: install it (Debian: apt-get install graphviz), or use --dot"},
                control);
  if (result.exit_code != 0)
    throw DataError("[inspect.draw] Graphviz's dot failed with exit code {}: {}", result.exit_code,
                    result.errors.substr(0, result.errors.find('\n')));
  return read_text_file(picture);
}

Json draw(const setup::OpenedModel& model, const std::vector<graph::Subgraph>& subgraphs, const InspectOptions& options,
          const RunControl& control) {
  graph::DrawingOptions drawing;
  drawing.title = fmt::format("{} ({})", model.checkpoint->location().filename().string(), model.architecture);
  drawing.full = options.full;
  drawing.value_bytes = static_cast<std::int64_t>(c10::elementSize(model.stored_dtype));
  drawing.weight_bytes = [&](const std::vector<graph::NodeId>& nodes) {
    WeightCount count(model);
    for (const graph::NodeId n : nodes)
      for (const graph::WeightUse& use : graph::weights_of(model.traced.graph.nodes[n].operation)) count.add(use);
    return count.bytes;
  };
  const std::string dot = graph::to_dot(model.traced.graph, subgraphs, drawing);
  Json files = Json::array();
  if (!options.svg.empty()) {
    write_text_file(options.svg, as_svg(dot, control));
    files.push_back(options.svg);
  }
  if (!options.dot.empty()) {
    write_text_file(options.dot, dot);
    files.push_back(options.dot);
  }
  return {{"pictures", std::move(files)}, {"subgraphs", subgraphs.size()}, {"nodes", model.traced.graph.nodes.size()}};
}

/// Where the graph comes from, how many nodes are of which kind, and what no recipe reaches.
Json graph_facts(const model::TracedModel& model) {
  std::map<std::string, std::int64_t> kinds;
  std::int64_t by_sample = 0;
  for (const graph::Node& node : model.graph.nodes) {
    ++kinds[graph::kind_name(node.operation)];
    if (const auto* aten = std::get_if<graph::Aten>(&node.operation); aten != nullptr && !aten->mixes.empty())
      ++by_sample;
  }
  return {{"source", model.computing_dtype.empty() ? "builtin" : "export"},
          {"nodes", kinds},
          {"sample_by_sample", by_sample},
          {"left_out", model.left_out}};
}

/// Whether a picture is requested.
bool draws(const InspectOptions& options) { return !options.svg.empty() || !options.dot.empty(); }

void require_own_files(const InspectOptions& options) {
  const OneshotOptions& run = options.run;
  run::require_own_file(run, "--svg", options.svg);
  run::require_own_file(run, "--dot", options.dot);
  require_own_file("--dot", options.dot, {{"the file of --svg", options.svg}}, {});
  if (options.sensitivity) run::require_own_file(run, "--summary", run.summary);
}

void check_options(const InspectOptions& options) {
  require_own_files(options);
  if (!options.svg.empty()) require_writable("--svg", options.svg);
  if (!options.dot.empty()) require_writable("--dot", options.dot);
  if (options.full && !draws(options)) throw UsageError("[options] --full requires a picture; add --svg or --dot");
  if (static_cast<int>(options.graph) + static_cast<int>(options.plan) + static_cast<int>(options.sensitivity) +
          static_cast<int>(draws(options)) >
      1)
    throw UsageError(
        "[options] --graph, --plan, --sensitivity and a picture (--svg, --dot) exclude each other; choose one");
}

Json measure_sensitivity(const InspectOptions& options, const RunControl& control, Distributed* ranks) {
  dist::Group alone;
  dist::Group& group = ranks != nullptr ? *ranks : alone;
  return run::run_together(group, [&] {
    const RunControl own = run::control_of(control, group);
    OneshotOptions start = options.run;
    start.schemes = options.schemes;
    setup::require_same_start(start, /*is_plan=*/false, group);
    run::fetch_model(options.run, group, own);
    return run::sensitivity(options.run, options.schemes, own, group);
  });
}

}  // namespace

Json inspect(const InspectOptions& options, const RunControl& control, Distributed* ranks) {
  check_options(options);
  if (options.plan) return {{"plan", plan_oneshot(options.run, control, ranks)}};
  if (options.sensitivity) return {{"sensitivity", measure_sensitivity(options, control, ranks)}};
  if (options.run.download) setup::download_model(options.run.model, control);
  const setup::OpenedModel model = setup::open_model(
      options.run.model,
      {options.run.moe_calibrate_all_experts ? setup::ExpertTokens::kAll : setup::ExpertTokens::kRouted,
       options.run.model_graph, options.run.trust_remote_code, "cpu", options.run.dtype},
      control);
  if (options.graph) return {{"graph", graph::to_text(model.traced.graph)}};
  const std::vector<graph::Subgraph> cut =
      setup::cut_model(model.traced, options.run.sequential_targets, options.run.sequential_targets_per_subgraph);
  if (draws(options)) return draw(model, cut, options, control);
  WeightCount total(model);
  for (const graph::Node& node : model.traced.graph.nodes)
    for (const graph::WeightUse& use : graph::weights_of(node.operation)) total.add(use);
  Json subgraphs = Json::array();
  for (const graph::Subgraph& subgraph : cut) subgraphs.push_back(describe(model, subgraph));
  return {{"model", model.checkpoint->location().string()},
          {"architecture", model.architecture},
          {"graph", graph_facts(model.traced)},
          {"parameters", total.parameters},
          {"bytes", total.bytes},
          {"quantization", model.source_format.empty() ? Json() : Json(model.source_format)},
          {"quantized_weights", total.quantized},
          {"dequantized_bytes", total.dequantized_bytes},
          {"subgraphs", std::move(subgraphs)}};
}

Json list_architectures() {
  Json list = Json::array();
  for (const model::Architecture& architecture : model::architectures())
    list.push_back({{"model_type", architecture.model_type},
                    {"class", architecture.class_name},
                    {"special", architecture.special}});
  return list;
}

}  // namespace layerpress
