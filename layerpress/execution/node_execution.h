#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "layerpress/execution/batch.h"
#include "layerpress/execution/fused_nodes.h"
#include "layerpress/graph/graph.h"
#include "layerpress/residency/onload.h"

namespace layerpress::execution {

/// Computes one node on its `inputs`; one that nobody else holds may be written to.
at::Tensor execute_node(const FusedNode& node, std::vector<at::Tensor> inputs, const residency::Onload& parameters,
                        BatchContext& context);

/// Memory that a node needs beside its inputs and its output, in bytes; on a CPU.
std::uint64_t node_workspace_bytes(const graph::Graph& graph, const FusedNode& node, const Batch& batch,
                                   const residency::Placement& placement, int threads);

/// Rows of a value in a batch; of selected tokens as many as an expert gets when all get as many.
double expected_rows(const graph::Graph& graph, graph::ValueId value, const Batch& batch);

/// Floating-point operations of a node over a batch (products counted twice; attention halved by causality).
double node_flops(const graph::Graph& graph, const FusedNode& node, const Batch& batch);

}  // namespace layerpress::execution
