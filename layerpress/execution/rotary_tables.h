#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <vector>

#include "layerpress/graph/graph.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// Cosines and sines of a model's rotary embeddings. Those of its own frequencies are computed once for all layers and batches of a
/// run; frequencies that depend on a sample's length are not kept. One thread at a time.
class RotaryTables {
 public:
  /// fp32 [positions, pairs], rounded to the computing dtype as transformers does, on the computing device.
  struct Table {
    at::Tensor cosine, sine;
  };
  /// At least `length` positions from 0.
  Table get(const graph::RopeTable& rope, const std::vector<double>& frequencies, std::int64_t length,
            const residency::Placement& placement);

  /// Bytes that are kept of the graph's tables when no sample is longer.
  static std::uint64_t kept_bytes(const graph::Graph& graph, std::int64_t longest_sample);

 private:
  std::map<std::pair<std::vector<double>, double>, Table> kept_;  // by frequencies and scaling
};

}  // namespace layerpress::execution
