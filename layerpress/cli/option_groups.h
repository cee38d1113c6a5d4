#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace layerpress::cli {

/// Options with one purpose, in the order in which --help and docs/options.md show them.
struct OptionGroup {
  std::string title;
  std::vector<std::string_view> options;
  std::string example;  ///< of oneshot; a command line for docs/options.md
};

/// The groups of all commands. An option that is in none is one of "Options" in --help; print_options, which writes
/// docs/options.md, refuses it.
inline const std::vector<OptionGroup>& option_groups() {
  static const std::vector<OptionGroup> groups{
      {"What to show", {"graph", "svg", "dot", "full", "plan", "sensitivity"}, ""},
      {"Result",
       {"output", "overwrite", "max-shard-size", "summary", "report", "imatrix", "card", "push", "push-public"},
       "layerpress oneshot MODEL --output out --overwrite --dataset data.jsonl --report out.html"},
      {"Compression",
       {"recipe", "algorithm", "scheme", "group-size", "observer", "quality", "from-imatrix", "target-bits",
        "target-size", "schemes", "targets", "ignore"},
       "layerpress oneshot MODEL --output out --dataset data.jsonl --scheme W4A16 --group-size 64 --quality best"},
      {"Data",
       {"dataset", "reference", "dataset-split", "text-column", "num-calibration-samples", "num-samples",
        "max-seq-length", "shuffle", "seed", "concatenate", "use-loss-mask", "generate", "quantize-activations"},
       "layerpress oneshot MODEL --output out --dataset chats.parquet --text-column messages "
       "--num-calibration-samples 128 --shuffle"},
      {"Comparison", {"source"}, ""},
      {"Benchmark tasks", {"tasks", "task-folder", "engine", "limit"}, ""},
      {"Mixtures of experts",
       {"moe-calibrate-all-experts", "min-tokens-per-expert"},
       "layerpress oneshot MODEL --output out --dataset data.jsonl --no-moe-calibrate-all-experts"},
      {"Memory and speed",
       {"memory-budget", "device-memory-budget", "sequential-offload-device", "offload-dir", "sequential-targets",
        "sequential-targets-per-subgraph", "pipeline", "batch-tokens", "device", "dtype", "threads"},
       "layerpress oneshot MODEL --output out --dataset data.jsonl --memory-budget 4GiB --offload-dir /scratch"},
      {"Interrupted runs and several ranks",
       {"resume", "timeout"},
       "layerpress oneshot MODEL --output out --dataset data.jsonl --resume"},
      {"Opening the model",
       {"download", "model-graph", "trust-remote-code"},
       "layerpress oneshot org/name --download --output out --dataset data.jsonl"},
  };
  return groups;
}

/// The title of an option's group, "" if it is in none.
inline std::string group_of(std::string_view option) {
  for (const OptionGroup& group : option_groups())
    for (const std::string_view name : group.options)
      if (name == option) return group.title;
  return "";
}

}  // namespace layerpress::cli
