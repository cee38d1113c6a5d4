#pragma once

#include <cstddef>
#include <optional>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"

namespace layerpress::pipeline {

/// Receives results while a run goes on.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  /// Whether this process is the one that stores a linear's results; without data it is also the only one to make them.
  virtual bool owns(graph::NodeId) const { return true; }
  /// A module's codes, as soon as they are final.
  virtual void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                             const compression::CompressedModule& result) = 0;
  /// All weights that only subgraph `index` reads are final; the uncompressed ones may be copied. `boundary`: where the
  /// values that later subgraphs read are stored on disk (ActivationStore::boundary), or null.
  virtual void on_subgraph_done(std::size_t index, const Json& boundary) = 0;
  /// The last subgraph whose results and boundary would outlive a crash at this moment.
  virtual std::optional<std::size_t> durable_subgraph() { return std::nullopt; }
};

}  // namespace layerpress::pipeline
