#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/base/progress.h"

namespace layerpress {

struct InspectOptions {
  std::string model;
  std::vector<std::string> sequential_targets;
  std::int64_t sequential_targets_per_subgraph = 1;
  bool moe_calibrate_all_experts = true;
  bool graph = false;
  std::string svg;
  std::string dot;
  bool full = false;
  bool plan = false;
  // For `plan`, as in OneshotOptions.
  std::string recipe;
  std::string algorithm = "gptq";
  std::string scheme = "W4A16";
  std::int64_t group_size = 0;
  std::int64_t num_calibration_samples = 512;
  std::int64_t max_seq_length = 2048;
  std::string pipeline;
  std::int64_t batch_tokens = 0;
  std::string memory_budget;
  std::string sequential_offload_device = "auto";
  int threads = 0;

  template <typename Self, typename Visitor>
  static void visit(Self& self, Visitor&& field) {
    field("sequential-targets", self.sequential_targets, "modules to cut the model at (default: its decoder layers)");
    field("sequential-targets-per-subgraph", self.sequential_targets_per_subgraph,
          "how many of them are onloaded together");
    field("moe-calibrate-all-experts", self.moe_calibrate_all_experts,
          "show the graph of a run whose experts see all tokens, not only those routed to them");
    field("graph", self.graph, "print the traced graph, node by node, instead");
    field("svg", self.svg, "draw the graph into this file instead; needs Graphviz");
    field("dot", self.dot, "write the graph in Graphviz's language into this file instead");
    field("full", self.full, "with --svg or --dot: every layer and every expert, not one of those that are alike");
    field("plan", self.plan, "show memory, disk and time of a one-shot run instead");
    field("recipe", self.recipe, "with --plan: recipe file");
    field("algorithm", self.algorithm, "with --plan: gptq or rtn");
    field("scheme", self.scheme, "with --plan: preset such as W4A16");
    field("group-size", self.group_size, "with --plan: columns that share a scale");
    field("num-calibration-samples", self.num_calibration_samples, "with --plan: how many samples");
    field("max-seq-length", self.max_seq_length, "with --plan: tokens in each of them");
    field("pipeline", self.pipeline, "with --plan: sequential, basic or datafree");
    field("batch-tokens", self.batch_tokens, "with --plan: tokens packed into one batch");
    field("memory-budget", self.memory_budget, "with --plan: memory the run may take");
    field("sequential-offload-device", self.sequential_offload_device, "with --plan: auto, cpu, disk or none");
    field("threads", self.threads, "with --plan: CPU threads");
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
