#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layerpress/execution/batch.h"
#include "layerpress/execution/fused_nodes.h"
#include "layerpress/graph/graph.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// Computes one node on its `inputs`. An input that nothing else holds may be overwritten.
at::Tensor execute_node(const FusedNode& node, std::vector<at::Tensor> inputs, const residency::Onload& parameters,
                        BatchContext& context);

/// Memory that a node needs besides its inputs and its output, in bytes; on a CPU.
std::uint64_t node_workspace_bytes(const graph::Graph& graph, const FusedNode& node, const Batch& batch,
                                   const residency::Placement& placement, int threads);

/// Floating-point operations of a node for a batch (a multiply-add counts two; causal attention counts half).
double node_flops(const graph::Graph& graph, const FusedNode& node, const Batch& batch);
/// The phase in which they are counted.
const char* node_phase(const graph::Graph& graph, const FusedNode& node);

/// Rows for which a value between stages takes memory.
double stored_rows(const graph::Graph& graph, graph::ValueId value, const Batch& batch);

}  // namespace layerpress::execution
