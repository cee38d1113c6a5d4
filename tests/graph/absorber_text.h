#pragma once

#include <fmt/format.h>

#include "layerpress/base/text.h"
#include "layerpress/graph/facts/scale_absorbers.h"

namespace layerpress::graph {

/// "[0:16, 32:48]", or "" for all `features`.
inline std::string runs_text(const std::vector<ChannelRun>& runs, std::int64_t features) {
  std::vector<ChannelRun> merged;
  for (const ChannelRun& run : runs)
    if (!merged.empty() && merged.back().first + merged.back().count == run.first)
      merged.back().count += run.count;
    else
      merged.push_back(run);
  if (merged.size() == 1 && merged[0].first == 0 && merged[0].count == features) return "";
  std::vector<std::string> parts;
  for (const ChannelRun& run : merged) parts.push_back(fmt::format("{}:{}", run.first, run.first + run.count));
  return fmt::format("[{}]", join(parts));
}

/// One line per place, "layers.0.up_proj -> layers.0.down_proj"; channels and columns are named where they are not all:
/// "layers.0.qkv_proj[128:192] -> layers.0.o_proj".
inline std::string to_text(const Graph& graph, const std::vector<ScaleAbsorber>& absorbers) {
  std::string text;
  for (const ScaleAbsorber& absorber : absorbers) {
    const Node& source = graph.nodes[absorber.source];
    std::vector<std::string> readers;
    for (const ScaleReader& reader : absorber.readers) {
      const std::int64_t columns = graph.values[graph.nodes[reader.node].inputs[0]].features;
      readers.push_back(graph.module_name(graph.nodes[reader.node]) + runs_text(reader.columns, columns));
    }
    text += fmt::format("{}{} -> {}\n", graph.module_name(source),
                        runs_text(absorber.channels, graph.values[source.output].features), join(readers));
  }
  return text;
}

}  // namespace layerpress::graph
