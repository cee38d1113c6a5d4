#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/compression/transform.h"

namespace layerpress::compression {

/// The quantizer and the scheme of a linear node.
struct Assignment {
  const Quantizer* modifier = nullptr;
  const quant::QuantizationScheme* scheme = nullptr;
  at::ScalarType scale_dtype = at::kBFloat16;  ///< the stored weight's dtype, in which its scales are stored, too
  at::Device device = at::kCPU;                ///< on which it is compressed
  std::vector<graph::NodeId> fused{};          ///< other compressed linears that engines run with it as one
  /// Whether later layers are calibrated with the compressed weight: Quantizer::propagates(), and always for a weight that a
  /// transform changes, because a resumed run finds only the compressed one.
  bool propagates = true;
};

/// A transform at one of its sites.
struct PlannedTransform {
  const Transform* transform = nullptr;
  TransformSite site;
};

/// The result of applying a recipe to a model.
struct Assignments {
  std::map<graph::NodeId, Assignment> linears{};  ///< those that are quantized
  std::vector<PlannedTransform> transforms{};     ///< in the order in which they are applied

  /// The parameters that transforms change.
  std::set<std::string> transformed(const graph::Graph& graph) const;
  /// The parameters that differ from the original model's: those that transforms change, and the weights of quantized linears.
  std::set<std::string> changed(const graph::Graph& graph) const;
  /// Those of them that stay uncompressed.
  std::set<std::string> changed_plain(const graph::Graph& graph) const;
};

}  // namespace layerpress::compression
