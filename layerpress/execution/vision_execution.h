#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layerpress/execution/batch.h"
#include "layerpress/graph/graph.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// One implementation per kind of image node.
struct VisionExecution {
  const std::vector<at::Tensor>& inputs;
  const residency::Onload& parameters;
  BatchContext& context;

  /// Reads the batch's pixels instead of its input.
  at::Tensor operator()(const graph::PatchEmbedding& op) const;
  at::Tensor operator()(const graph::TileEmbedding& op) const;
  at::Tensor operator()(const graph::ClassEmbedding& op) const;
  at::Tensor operator()(const graph::PatchPosition& op) const;
  at::Tensor operator()(const graph::ZeroPadding& op) const;
  at::Tensor operator()(const graph::VisionAttention& op) const;
  at::Tensor operator()(const graph::Activation& op) const;
  at::Tensor operator()(const graph::GatedAdd& op) const;
  at::Tensor operator()(const graph::VisionFeatures& op) const;
  at::Tensor operator()(const graph::SelectIllustrated& op) const;
  at::Tensor operator()(const graph::MergeIllustrated& op) const;
  at::Tensor operator()(const graph::CrossAttention& op) const;
  at::Tensor operator()(const graph::MaskUnattending& op) const;
};

/// Like node_workspace_bytes and node_flops; 0 for nodes of other kinds.
std::uint64_t vision_workspace_bytes(const graph::Node& node, const Batch& batch,
                                     const residency::Placement& placement);
double vision_flops(const graph::Node& node, const Batch& batch);

}  // namespace layerpress::execution
