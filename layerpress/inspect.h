#pragma once

#include <string>
#include <string_view>

#include "layerpress/base/json.h"
#include "layerpress/base/progress.h"
#include "layerpress/oneshot.h"

namespace layerpress {

/// Everything that `layerpress inspect` can be told.
struct InspectOptions {
  bool graph = false;
  std::string svg;
  std::string dot;
  bool full = false;
  bool plan = false;
  /// The model, where to cut it, what its experts see, and the run that `plan` describes.
  OneshotOptions run;

  /// Whether a field of `run` describes the model, so that it also has a meaning without `plan`.
  static bool describes_model(std::string_view name) {
    return name == "sequential-targets" || name == "sequential-targets-per-subgraph" ||
           name == "moe-calibrate-all-experts" || name == "model-graph" || name == "trust-remote-code" ||
           name == "dtype" || name == "download";
  }
  /// Whether a field of `run` has no influence on a plan.
  static bool is_left_out(std::string_view name) {
    return name == "output" || name == "overwrite" || name == "resume" || name == "summary" || name == "report" ||
           name == "timeout" || name == "max-shard-size" || name == "offload-dir" || name == "push" ||
           name == "push-public";
  }

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("graph", self.graph, "print the traced graph, node by node, instead");
    field("svg", self.svg, "draw the graph into this file instead; needs Graphviz");
    field("dot", self.dot, "write the graph in Graphviz's language into this file instead");
    field("full", self.full, "with --svg or --dot: every layer and every expert, not one of several identical ones");
    field("plan", self.plan, "show memory, disk and time of a one-shot run instead");
    OneshotOptions::visit(self.run, [&](const char* name, auto& value, const char* help) {
      if (is_left_out(name)) return;
      field(name, value, describes_model(name) ? help : (std::string("with --plan: ") + help).c_str());
    });
  }
};

/// Describes a model as the pipelines see it: architecture, parameters, bytes, and each subgraph with its linear
/// groups: {"model", "architecture", "parameters", "bytes", "quantization", "subgraphs": [{"name", "nodes",
/// "parameters", "bytes", "linear_groups": [{"modules", "in_features", "out_features"}]}]}. With `graph`: {"graph":
/// text}; with `plan`: {"plan": the result of plan_oneshot (oneshot.h)}; with `svg` or `dot`: {"pictures": [files],
/// "subgraphs", "nodes"}. Throws UsageError if options contradict each other, and DataError if Graphviz is needed and
/// cannot be run.
Json inspect(const InspectOptions& options, const RunControl& control = {});

/// All model families: [{"model_type", "class", "special"}].
Json list_architectures();

}  // namespace layerpress
