#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "layerpress/graph/graph.h"
#include "layerpress/residency/onload.h"

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

/// Rows `places` of x, or x itself if they are all its rows.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& places);

/// function(gate(x)) * up(x) for these rows only.
at::Tensor gated_rows(const std::string& function, const at::Tensor& x, const at::Tensor& places,
                      const at::Tensor& gate, const at::Tensor& up);

/// Inputs: routed rows, routing, and optionally the sum, which is modified in place if nothing else holds it.
at::Tensor add_expert(const graph::Expert& op, std::vector<at::Tensor> inputs, const residency::Onload& parameters);

/// The most memory, in bytes, that add_expert(), gated_rows() and route() (also select_tokens() and routed_places())
/// need besides inputs and results.
std::uint64_t expert_workspace_bytes(const graph::Expert& op, std::int64_t tokens, at::ScalarType dtype, int threads);
std::uint64_t gated_rows_workspace_bytes(std::int64_t features, std::int64_t intermediate, std::int64_t tokens,
                                         at::ScalarType dtype, int threads);
std::uint64_t route_workspace_bytes(std::int64_t experts, std::int64_t tokens);

}  // namespace layerpress::execution
