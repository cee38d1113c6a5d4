#pragma once

#include <string>
#include <string_view>
#include <vector>

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
  bool sensitivity = false;
  std::vector<std::string> schemes;
  /// The model, where to cut it, what its experts see, and the run that `plan` describes or `sensitivity` does.
  OneshotOptions run;

  /// Whether a field of `run` describes the model, so that it always has a meaning.
  static bool describes_model(std::string_view name) {
    return name == "sequential-targets" || name == "sequential-targets-per-subgraph" ||
           name == "moe-calibrate-all-experts" || name == "model-graph" || name == "trust-remote-code" ||
           name == "dtype" || name == "download";
  }
  /// Whether a field of `run` has no meaning here.
  static bool is_left_out(std::string_view name) {
    return name == "output" || name == "overwrite" || name == "resume" || name == "report" ||
           name == "max-shard-size" || name == "push" || name == "push-public" || name == "target-bits" ||
           name == "target-size" || name == "schemes" || name == "from-imatrix";
  }
  /// "with --plan: " before the help of a field of `run`: what it needs to have a meaning.
  static std::string needs_text(std::string_view name) {
    if (describes_model(name)) return "";
    if (name == "recipe" || name == "algorithm" || name == "scheme" || name == "observer" || name == "quality")
      return "with --plan: ";
    if (name == "imatrix") return "with --plan: of a run that is to ";
    return name == "summary" || name == "offload-dir" || name == "timeout" ? "with --sensitivity: "
                                                                           : "with --plan or --sensitivity: ";
  }

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("graph", self.graph, "print the traced graph, node by node, instead");
    field("svg", self.svg, "draw the graph into this file instead; needs Graphviz");
    field("dot", self.dot, "write the graph in Graphviz's language into this file instead");
    field("full", self.full, "with --svg or --dot: every layer and every expert, not one of several identical ones");
    field("plan", self.plan, "show memory, disk and time of a one-shot run instead");
    field("sensitivity", self.sensitivity, "measure the output error of each linear in --schemes on --dataset instead");
    field("schemes", self.schemes, "with --sensitivity: presets to compare, such as NVFP4,FP8_DYNAMIC,W4A16");
    OneshotOptions::visit(self.run, [&](const char* name, auto& value, const char* help) {
      if (!is_left_out(name)) field(name, value, (needs_text(name) + help).c_str());
    });
  }
};

/// Describes a model as the pipelines see it: architecture, parameters, bytes, and each subgraph with its linear
/// groups: {"model", "architecture", "parameters", "bytes", "quantization", "subgraphs": [{"name", "nodes",
/// "parameters", "bytes", "linear_groups": [{"modules", "in_features", "out_features"}]}]}. With `graph`: {"graph":
/// text}; with `plan`: {"plan": the result of plan_oneshot (oneshot.h)}; with `svg` or `dot`: {"pictures": [files],
/// "subgraphs", "nodes"}. Throws UsageError if options contradict each other, and DataError if Graphviz is needed and
/// cannot be run.
///
/// With `sensitivity`: {"sensitivity": {"model", "samples", "tokens", "order": the schemes, "schemes": {NAME: {"bits",
/// "mean_error", "greatest_error", "greatest_in", "rounds_inputs"}}, "modules": [{"module", "rows", "columns", "tokens",
/// "output_power", "schemes": {NAME: {"error", "bits"}}}], "seconds", "peak_anonymous_bytes", "planned_bytes"}}. "error" is
/// tr(D H Dᵀ) / tr(W H Wᵀ), where H is the Gram matrix of the linear's inputs in the original model and D = W -
/// dequantized(W); null without inputs. "bits": stored bits of a weight, scales and zero points included. Nothing is written
/// but the file of `summary`. With `ranks`, all ranks of the group call inspect() with the same options.
Json inspect(const InspectOptions& options, const RunControl& control = {}, Distributed* ranks = nullptr);

/// All model families: [{"model_type", "class", "special"}].
Json list_architectures();

}  // namespace layerpress
