#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"

namespace layerpress::pipeline {

/// Receives results during a run.
class ResultSink {
 public:
  virtual ~ResultSink() = default;
  /// Whether this process stores a linear's results. Without data, only this process computes them.
  virtual bool owns(graph::NodeId) const { return true; }
  /// A module's codes, as soon as they are final.
  virtual void on_compressed(const graph::Node& node, const quant::QuantizationScheme& scheme,
                             const compression::CompressedModule& result) = 0;
  /// A tensor that stands for no weight, on any device, when it is final: a parameter that stays uncompressed and that transforms
  /// have changed, or one that follows from the range of a value.
  virtual void on_tensor(const std::string& name, const at::Tensor& parameter) = 0;
  /// All weights that only subgraph `index` reads are final; the uncompressed ones may be copied. `boundary`: where the
  /// values that later subgraphs read are stored on disk (ActivationStore::boundary), or null.
  virtual void on_subgraph_done(std::size_t index, const Json& boundary) = 0;
  /// The last subgraph whose results and boundary would survive a crash now.
  virtual std::optional<std::size_t> durable_subgraph() { return std::nullopt; }
};

}  // namespace layerpress::pipeline
