#include "layerpress/kernels/program/sequence_operators.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <string>

#include "layerpress/kernels/layers/transformer.h"
#include "layerpress/kernels/program/gated_recurrences.h"
#include "layerpress/kernels/program/sequence_recurrences.h"
#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::kernels {
namespace {

using MaybeTensor = std::optional<at::Tensor>;

/// Which keys [T] each query [T] sees.
at::Tensor visible(std::int64_t tokens, c10::string_view kind, std::int64_t window, at::Device device) {
  const auto options = at::TensorOptions(at::kLong).device(device);
  const at::Tensor place = at::arange(tokens, options), query = place.unsqueeze(1), key = place.unsqueeze(0);
  if (kind == "bidirectional" || kind == "given") return at::ones({tokens, tokens}, options.dtype(at::kBool));
  at::Tensor before = key.le(query);
  if (kind == "causal") return before;
  TORCH_CHECK(window > 0 && (kind == "sliding" || kind == "chunked"), "attention has no mask '", std::string(kind),
              "'");
  if (kind == "sliding") return before.logical_and(key.gt(query - window));
  return before.logical_and(key.floor_divide(window).eq(query.floor_divide(window)));
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const MaybeTensor& mask,
                  const MaybeTensor& bias, const MaybeTensor& sinks, double scale, c10::string_view kind,
                  std::int64_t window, double soft_cap) {
  TORCH_CHECK(q.dim() == 4 && k.dim() == 4 && v.dim() == 4 && k.size(1) > 0 && q.size(1) % k.size(1) == 0 &&
                  v.size(1) == k.size(1) && q.size(2) == k.size(2) && v.size(2) == k.size(2),
              "attention takes [1, heads, T, d]");
  const std::int64_t tokens = q.size(2), groups = q.size(1) / k.size(1);
  const at::Tensor keys = k.repeat_interleave(groups, 1), values = v.repeat_interleave(groups, 1);
  at::Tensor scores = at::matmul(q, keys.transpose(2, 3)) * scale;
  if (soft_cap > 0) scores = (scores / soft_cap).tanh() * soft_cap;
  if (bias) scores = scores + bias->slice(-1, 0, tokens).slice(-2, 0, tokens);
  if (mask && mask->scalar_type() == at::kBool)
    scores = scores.masked_fill(mask->logical_not(), -std::numeric_limits<double>::infinity());
  else if (mask)
    scores = scores + *mask;
  scores = scores.masked_fill(visible(tokens, kind, window, q.device()).logical_not(),
                              -std::numeric_limits<double>::infinity());
  if (sinks) scores = at::cat({scores, sinks->reshape({1, -1, 1, 1}).expand({q.size(0), q.size(1), tokens, 1})}, -1);
  const at::Tensor shares = at::softmax(scores.to(at::kFloat), -1).slice(-1, 0, tokens).to(q.scalar_type());
  return at::matmul(shares, values).transpose(1, 2).contiguous();
}

/// What lies between an expert's projections: a known function of two halves, or a program.
at::Tensor gate(const at::Tensor& x, c10::string_view function) {
  if (!function.empty() && function.front() == '{') {
    ProgramInputs inputs;
    inputs.values = {x.contiguous()};
    return TensorProgram::compile(std::string(function))->run(inputs, x.size(0));
  }
  const std::int64_t half = x.size(1) / 2;
  return gated_activation(std::string(function), x.slice(1, 0, half).contiguous(), x.slice(1, half).contiguous());
}

at::Tensor experts(const at::Tensor& x, const at::Tensor& index, const at::Tensor& weights, const at::Tensor& gate_up,
                   const MaybeTensor& gate_up_bias, const at::Tensor& down, const MaybeTensor& down_bias,
                   bool transposed, bool, c10::string_view function) {
  TORCH_CHECK(gate_up.dim() == 3 && down.dim() == 3 && x.dim() == 2 && index.dim() == 2 &&
                  index.sizes() == weights.sizes() && down.size(0) == gate_up.size(0),
              "experts takes x [T, features], index and weights [T, k] and weights of three dimensions");
  at::Tensor sum = at::zeros_like(x);
  const auto of = [&](const at::Tensor& stacked, std::int64_t e) {
    return transposed ? stacked.select(0, e).t() : stacked.select(0, e);
  };
  const auto bias_of = [](const MaybeTensor& stacked, std::int64_t e) {
    return stacked ? MaybeTensor(stacked->select(0, e)) : MaybeTensor();
  };
  for (std::int64_t e = 0; e < gate_up.size(0); ++e) {
    const at::Tensor chosen = index.eq(e).nonzero();
    if (chosen.size(0) == 0) continue;
    const at::Tensor rows = chosen.select(1, 0), places = chosen.select(1, 1);
    at::Tensor y = at::linear(x.index_select(0, rows), of(gate_up, e), bias_of(gate_up_bias, e));
    y = at::linear(gate(y, function), of(down, e), bias_of(down_bias, e));
    const at::Tensor own = weights.index({rows, places}).unsqueeze(-1);
    sum.index_add_(0, rows, (y * own).to(sum.scalar_type()));
  }
  return sum;
}

at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weights, const at::Tensor& rows) {
  TORCH_CHECK(x.dim() == 2 && weights.dim() == 3 && weights.size(1) == x.size(1) && rows.dim() == 1 &&
                  rows.size(0) == weights.size(0) && rows.scalar_type() == at::kLong,
              "grouped_product takes x [rows, in], weights [groups, in, out] and the rows of each group");
  const at::Tensor counts = rows.to(at::kCPU).contiguous();
  at::Tensor result = at::zeros({x.size(0), weights.size(2)}, x.options());
  std::int64_t first = 0;
  for (std::int64_t group = 0; group < weights.size(0); ++group) {
    const std::int64_t count = counts.const_data_ptr<std::int64_t>()[group];
    TORCH_CHECK(count >= 0 && count <= x.size(0) - first, "grouped_product: group ", group, " has ", count, " rows");
    if (count > 0)
      result.slice(0, first, first + count)
          .copy_(at::matmul(x.slice(0, first, first + count), weights.select(0, group)));
    first += count;
  }
  return result;
}

torch::Library make_library() {
  torch::Library library(torch::Library::DEF, "layerpress", std::nullopt, __FILE__, __LINE__);
  const auto dispatched = [&](const char* schema, auto function) {
    library.def(schema, torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, function));
  };
  dispatched(
      "attention(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? sinks, float scale, str kind, int "
      "window, float soft_cap) -> Tensor",
      attend);
  dispatched(
      "experts(Tensor x, Tensor index, Tensor weights, Tensor gate_up, Tensor? gate_up_bias, Tensor down, Tensor? "
      "down_bias, bool transposed, bool gated, str function) -> Tensor",
      experts);
  dispatched("causal_conv1d(Tensor x, Tensor weight, Tensor? bias, str activation) -> Tensor", causal_conv1d);
  dispatched("gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, bool l2norm) -> Tensor",
             delta_rule);
  dispatched("kimi_delta_attention(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, bool l2norm) -> Tensor",
             delta_rule);
  dispatched(
      "mamba2_scan(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? dt_bias, bool softplus, float "
      "low, float high) -> Tensor",
      mamba2_scan);
  dispatched(
      "selective_scan(Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, Tensor? D, Tensor? z, Tensor? dt_bias, bool "
      "softplus) -> Tensor",
      selective_scan);
  dispatched("wkv(Tensor decay, Tensor first, Tensor key, Tensor value) -> Tensor", wkv);
  dispatched("linear_recurrence(Tensor x, Tensor decay) -> Tensor", linear_recurrence);
  dispatched("mlstm(Tensor q, Tensor k, Tensor v, Tensor input, Tensor forget, float epsilon) -> Tensor", mlstm);
  dispatched("grouped_product(Tensor x, Tensor weights, Tensor rows) -> Tensor", grouped_product);
  return library;
}

}  // namespace

void register_sequence_operators() { static const torch::Library kLibrary = make_library(); }

}  // namespace layerpress::kernels
