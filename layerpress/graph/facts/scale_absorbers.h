#pragma once

#include <string>
#include <vector>

#include "layerpress/graph/graph.h"

namespace layerpress::graph {

/// Channels [first, first + count) of a value hold what channels [source, source + count) of the source's output hold.
struct ChannelRun {
  std::int64_t source = 0;
  std::int64_t first = 0;
  std::int64_t count = 0;
  bool operator==(const ChannelRun&) const = default;
};

/// A weight [rows, columns] whose columns are multiplied by the scale.
struct ScaleReader {
  NodeId node = -1;  ///< a Linear or an Expert; the first of those that read the weight
  std::string weight;
  std::vector<ChannelRun> columns;  ///< the scale of each column; the other columns stay unchanged
};

/// A value between a source and its readers, whose channels are divided by the scale.
struct ScaledValue {
  ValueId value = -1;
  std::vector<ChannelRun> channels;
};

/// A place where a per-channel scale s can be hidden: parameters of the source are divided by s, and the columns of all
/// readers are multiplied by it, which leaves everything that the graph computes elsewhere as it was.
struct ScaleAbsorber {
  /// A norm over whole rows (channel c: element c of weight_offset + weight, and of the bias), or a Linear (channel c:
  /// row c of the weight, element c of the bias).
  NodeId source = -1;
  std::vector<ChannelRun> channels;  ///< of the source's output that may be scaled; first == source
  std::vector<ScaleReader> readers;  ///< all of them, in the order of the graph
  std::vector<ScaledValue> values;   ///< the source's output, and the values between it and the readers

  /// Names of the parameters that are changed, each once.
  std::vector<std::string> parameters(const Graph& graph) const;
};

/// All places of a graph, in its order. A scale passes operations that treat every channel by itself and linearly: the
/// second input of a gated activation or a gate, the values of an attention without grouped heads, the selection of
/// rows, constant factors, slices. Weights that are also read elsewhere (a tied head) have no place.
std::vector<ScaleAbsorber> scale_absorbers(const Graph& graph);

}  // namespace layerpress::graph
