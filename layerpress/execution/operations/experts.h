#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "layerpress/execution/operation_execution.h"
#include "layerpress/graph/graph.h"

namespace layerpress::execution {

/// Weights of the chosen experts, in the logits' dtype: [tokens, experts]. `bias`: undefined where there is none.
at::Tensor route(const graph::Route& op, const at::Tensor& logits, const at::Tensor& bias);

/// The rows of x that are routed to the expert or score at least `least_score` for it.
at::Tensor select_tokens(const graph::SelectTokens& op, const at::Tensor& x, const at::Tensor& logits,
                         const at::Tensor& routing, float least_score);

/// Indices of the rows that are routed to the expert, in order, among all tokens or among those that select_tokens()
/// returns.
at::Tensor routed_places(const graph::TakeRouted& op, const at::Tensor& logits, const at::Tensor& routing,
                         bool of_selected, float least_score);
/// The same for a node, among the rows of the value that they are taken from.
at::Tensor routed_places(const graph::TakeRouted& op, const NodeRun& run);

/// Rows `places` of x, or x itself if they are all its rows.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& places);

/// function(gate(x)) * up(x) for these rows only.
at::Tensor gated_rows(const std::string& function, const at::Tensor& x, const at::Tensor& places,
                      const at::Tensor& gate, const at::Tensor& up);

/// The most memory, in bytes, that gated_rows() needs besides inputs and results, and route() with the functions that
/// select rows.
std::uint64_t gated_rows_workspace_bytes(std::int64_t features, std::int64_t intermediate, std::int64_t tokens,
                                         at::ScalarType dtype, int threads);
std::uint64_t route_workspace_bytes(std::int64_t experts, std::int64_t tokens);

}  // namespace layerpress::execution
