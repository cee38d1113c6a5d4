#include "layerpress/base/text.h"
#include "layerpress/cli/commands.h"
#include "layerpress/cli/run_on_ranks.h"
#include "layerpress/cli/text/model_tree.h"
#include "layerpress/cli/text/plan_text.h"
#include "layerpress/cli/text/sensitivity_text.h"
#include "layerpress/distributed.h"
#include "layerpress/inspect.h"

namespace layerpress::cli {
namespace {

/// How an imported graph divides into nodes; nothing for one of our own.
void print_graph_facts(const Json& graph) {
  if (graph["source"] != "export") return;
  std::vector<std::string> kinds;
  for (const auto& [kind, count] : graph["nodes"].items())
    kinds.push_back(fmt::format("{} {}", count.get<std::int64_t>(), kind));
  fmt::print("graph imported from PyTorch's export: {}; {} aten nodes run sample by sample\n", join(kinds),
             graph["sample_by_sample"].get<std::int64_t>());
  if (!graph["left_out"].empty())
    fmt::print("without a node of their own, so never compressed: {}\n",
               join(graph["left_out"].get<std::vector<std::string>>()));
  fmt::print("\n");
}

void print_text(const Json& model) {
  fmt::print("{}\n{}: {} parameters, {}{}\n\n", model["model"].get<std::string>(),
             model["architecture"].get<std::string>(), model["parameters"].get<std::int64_t>(),
             format_bytes(model["bytes"].get<std::uint64_t>()),
             model["quantization"].is_null() ? "" : ", " + model["quantization"].get<std::string>());
  if (model["quantized_weights"].get<std::int64_t>() > 0)
    fmt::print("{} weights are stored quantized; they take {} while they are onloaded, a subgraph at a time\n\n",
               model["quantized_weights"].get<std::int64_t>(),
               format_bytes(model["dequantized_bytes"].get<std::uint64_t>()));
  print_graph_facts(model["graph"]);
  fmt::print("{}", model_tree(model["subgraphs"]));
}

void print_architectures(const Json& list) {
  for (const Json& entry : list)
    fmt::print("{:<14} {:<32} {}\n", entry["model_type"].get<std::string>(), entry["class"].get<std::string>(),
               entry["special"].get<std::string>());
}

void print_pictures(const Json& drawn) {
  for (const Json& file : drawn["pictures"])
    fmt::print("{}: {} subgraphs, {} nodes\n", file.get<std::string>(), drawn["subgraphs"].get<std::size_t>(),
               drawn["nodes"].get<std::size_t>());
}

/// Prints the result of `inspect` in the form that the options request.
void print_result(const Json& result, const InspectOptions& options) {
  if (options.plan)
    fmt::print("{}", plan_text(result["plan"]));
  else if (options.graph)
    fmt::print("{}", result["graph"].get<std::string>());
  else if (result.contains("pictures"))
    print_pictures(result);
  else
    print_text(result);
}

/// The only kind of inspection that several ranks can share.
int run_sensitivity(const CommandLine& line, const RunControl& control) {
  const auto work = [&](Distributed& ranks) {
    const Json figures = inspect(line.inspect, control, &ranks)["sensitivity"];
    end_progress(control);
    if (ranks.is_first()) fmt::print("{}", line.json ? figures.dump(2) + "\n" : sensitivity_text(figures));
  };
  return run_on_ranks(line.inspect.run.timeout, control, work, [](ErrorKind, const Distributed&) {});
}

}  // namespace

int run_inspect(const CommandLine& line, const RunControl& control) {
  if (line.inspect.sensitivity && !line.architectures) return run_sensitivity(line, control);
  const Json result = line.architectures ? list_architectures() : inspect(line.inspect, control);
  if (line.json)
    fmt::print("{}\n", (line.inspect.plan ? result["plan"] : result).dump(2));
  else if (line.architectures)
    print_architectures(result);
  else
    print_result(result, line.inspect);
  return 0;
}

}  // namespace layerpress::cli
