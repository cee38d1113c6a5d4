#include "layerpress/execution/operations/experts.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "layerpress/graph/facts/expert_inputs.h"
#include "layerpress/kernels/layers/linear.h"
#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::execution {
namespace {

/// Rows of an expert that are computed together.
constexpr std::int64_t kExpertRows = 2048;

/// Scores for choosing experts, if only experts of the best groups may be chosen.
at::Tensor limited_to_groups(const graph::Route& op, const at::Tensor& scores) {
  if (op.top_groups == op.groups) return scores;
  const std::int64_t tokens = scores.size(0), members = op.experts / op.groups;
  const at::Tensor grouped = scores.view({tokens, op.groups, members});
  const at::Tensor by_group = op.group_score == "top2"
                                  ? std::get<0>(grouped.topk(std::min<std::int64_t>(2, members), -1)).sum(-1)
                                  : grouped.amax(-1);
  const at::Tensor best = std::get<1>(by_group.topk(op.top_groups, -1, /*largest=*/true, /*sorted=*/false));
  const at::Tensor allowed = at::zeros_like(by_group, at::kBool).scatter_(1, best, true);
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  return grouped.masked_fill(allowed.logical_not().unsqueeze(-1), kNever).view({tokens, op.experts});
}

}  // namespace

at::Tensor route(const graph::Route& op, const at::Tensor& logits, const at::Tensor& bias) {
  const at::Tensor wide = logits.to(at::kFloat);
  const at::Tensor scores = op.scores == "softmax" ? wide.softmax(-1) : op.scores == "sigmoid" ? wide.sigmoid() : wide;
  const at::Tensor compared = bias.defined() ? scores + bias.to(at::kFloat) : scores;
  const at::Tensor chosen = std::get<1>(limited_to_groups(op, compared).topk(op.top_k, -1));
  at::Tensor weights = scores.gather(1, chosen);
  if (op.scores == "chosen_softmax") weights = weights.softmax(-1);
  if (op.normalize) weights = weights / (weights.sum(-1, /*keepdim=*/true) + (op.scores == "sigmoid" ? 1e-20 : 0));
  if (op.scale != 1) weights = weights * op.scale;
  return at::zeros_like(logits).scatter_(1, chosen, weights.to(logits.scalar_type()));
}

namespace {

/// The tokens that an expert is calibrated on.
at::Tensor selected_mask(const at::Tensor& logits, const at::Tensor& routing, std::int64_t expert, float least_score) {
  at::Tensor routed = routing.select(1, expert).ne(0);
  if (least_score > 1) return routed;
  return routed.logical_or(at::softmax(logits, -1, at::kFloat).select(1, expert).ge(least_score));
}

}  // namespace

at::Tensor select_tokens(const graph::SelectTokens& op, const at::Tensor& x, const at::Tensor& logits,
                         const at::Tensor& routing, float least_score) {
  return x.index_select(0, selected_mask(logits, routing, op.expert, least_score).nonzero().squeeze(1));
}

at::Tensor routed_places(const graph::TakeRouted& op, const at::Tensor& logits, const at::Tensor& routing,
                         bool of_selected, float least_score) {
  at::Tensor weights = routing.select(1, op.expert);
  if (of_selected) weights = weights.masked_select(selected_mask(logits, routing, op.expert, least_score));
  return weights.nonzero().squeeze(1);
}

at::Tensor routed_places(const graph::TakeRouted& op, const NodeRun& run) {
  const bool of_selected = run.context.graph().values[run.node.inputs[0]].rows == graph::Rows::kSelected;
  return routed_places(op, run.inputs[1], run.inputs[2], of_selected,
                       run.context.least_score(run.node.inputs[2], op.expert));
}

at::Tensor take_rows(const at::Tensor& x, const at::Tensor& places) {
  // The indices are ordered and unique: if there are as many as rows, they are all rows.
  return places.size(0) == x.size(0) ? x : x.index_select(0, places);
}

at::Tensor gated_rows(const std::string& function, const at::Tensor& x, const at::Tensor& places,
                      const at::Tensor& gate, const at::Tensor& up) {
  if (places.size(0) > kExpertRows) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : places.split(kExpertRows)) parts.push_back(gated_rows(function, x, part, gate, up));
    return at::cat(parts);
  }
  return kernels::gated_linear(function, take_rows(x, places), gate, up);
}

std::uint64_t gated_rows_workspace_bytes(std::int64_t features, std::int64_t intermediate, std::int64_t tokens,
                                         at::ScalarType dtype, int threads) {
  const std::int64_t rows = std::min(kExpertRows, tokens);
  return static_cast<std::uint64_t>(rows * (features + 3 * intermediate)) * c10::elementSize(dtype) +
         kernels::linear_workspace_bytes(rows, features, dtype, threads);
}

std::uint64_t route_workspace_bytes(std::int64_t experts, std::int64_t tokens) {
  constexpr std::uint64_t kCopies = 5;  // logits and scores in fp32, compared scores, topk's order
  return kCopies * static_cast<std::uint64_t>(tokens * experts) * sizeof(float);
}

namespace {

struct ExpertFunctions {
  static at::Tensor execute(const graph::Route& op, const NodeRun& run) {
    return route(op, run.inputs[0], op.bias.empty() ? at::Tensor() : run.parameters.original(op.bias));
  }
  static std::uint64_t workspace_bytes(const graph::Route& op, const NodeShape& shape, const Workplace&) {
    return route_workspace_bytes(op.experts, shape.batch.tokens());
  }

  static at::Tensor execute(const graph::SelectTokens& op, const NodeRun& run) {
    return select_tokens(op, run.inputs[0], run.inputs[1], run.inputs[2],
                         run.context.least_score(run.node.inputs[2], op.expert));
  }

  static at::Tensor execute(const graph::TakeRouted& op, const NodeRun& run) {
    return take_rows(run.inputs[0], routed_places(op, run));
  }
  static std::uint64_t workspace_bytes(const graph::ExpertRows& op, const NodeShape& shape, const Workplace&) {
    return route_workspace_bytes(op.experts, shape.batch.tokens());
  }

  /// All experts' routed rows together are as many as expected. Because their numbers differ, many are in reused blocks
  /// of memory that are larger by up to an eighth.
  static double stored_rows(const graph::TakeRouted&, const NodeShape& shape) {
    return std::ceil(1.125 * expected_rows(shape.graph, shape.node.output, shape.batch));
  }

  /// Which of these tokens count; undefined: all.
  static at::Tensor counted(const Batch& batch, const at::Tensor& tokens) {
    return batch.counted.defined() ? at::isin(tokens, batch.counted.to(tokens.device())) : at::Tensor();
  }

  /// Whether nothing else reads the tensor's memory, and it is no part of a file.
  static bool is_own(const at::Tensor& tensor) {
    return tensor.use_count() == 1 && tensor.storage().use_count() == 1 && tensor.storage().resizable();
  }

  /// Modifies the sum in place if nothing else holds it.
  static at::Tensor execute(const graph::Expert& op, const NodeRun& run) {
    const at::Tensor& own = run.inputs[0];
    const at::Tensor weights = run.inputs[1].select(1, op.expert);
    at::Tensor sum;
    if (run.inputs.size() < 3)
      sum = at::zeros({weights.size(0), op.features}, own.options());
    else
      sum = is_own(run.inputs[2]) ? std::move(run.inputs[2]) : run.inputs[2].clone();
    const at::Tensor tokens = weights.nonzero().squeeze(1);
    std::optional<at::Tensor> bias;
    if (!op.down_bias.empty()) bias = run.parameters.parameter(op.down_bias);
    for (std::int64_t first = 0; first < tokens.numel(); first += kExpertRows) {
      const std::int64_t count = std::min(kExpertRows, tokens.numel() - first);
      const at::Tensor output = kernels::linear(own.narrow(0, first, count), run.parameters.parameter(op.down), bias);
      const at::Tensor places = tokens.narrow(0, first, count);
      if (ExpertContributions* measured = run.context.contributions())
        measured->add(run.node.output, output, weights.index_select(0, places), counted(run.context.batch(), places));
      kernels::add_weighted_rows(sum, output, places, weights);
    }
    return sum;
  }
  static std::uint64_t workspace_bytes(const graph::Expert& op, const NodeShape& shape, const Workplace& place) {
    const std::int64_t tokens = shape.batch.tokens(), rows = std::min(kExpertRows, tokens);
    const auto values = static_cast<std::uint64_t>(rows * (3 * op.features + op.intermediate));
    return values * c10::elementSize(place.placement.dtype) +
           static_cast<std::uint64_t>(2 * tokens) * sizeof(std::int64_t) +
           kernels::linear_workspace_bytes(rows, op.intermediate, place.placement.dtype, place.threads);
  }
  static double flops(const graph::Expert& op, const NodeShape& shape) {
    return product_flops(expected_rows(shape.graph, shape.node.inputs[0], shape.batch), op.intermediate, op.features);
  }
};

/// An expert's share of the tokens if all experts get equally many.
double expert_share(const graph::Graph& graph, graph::ValueId routing) {
  const auto* route = std::get_if<graph::Route>(&graph.nodes[graph.values[routing].producer].operation);
  return route == nullptr ? 1 : static_cast<double>(route->top_k) / static_cast<double>(route->experts);
}

}  // namespace

double expected_rows(const graph::Graph& graph, graph::ValueId value, const Batch& batch) {
  const auto rows = static_cast<double>(batch.rows(graph.values[value].rows));
  if (graph.values[value].rows != graph::Rows::kSelected) return rows;
  return rows * expert_share(graph, graph::selection_of(graph, value).inputs[2]);
}

FamilyExecution executions(graph::ExpertOperations family) { return executions_by<ExpertFunctions>(family); }

}  // namespace layerpress::execution
