#include <ATen/ATen.h>

#include <cmath>
#include <optional>

#include "layerpress/base/error.h"
#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::kernels {

at::Tensor plain_rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const NormWeight& how) {
  const at::Tensor rows = x.reshape({-1, weight.numel()}).to(at::kFloat);
  const at::Tensor factor = at::rsqrt(rows.square().mean(-1, /*keepdim=*/true) + epsilon);
  if (how.rounded_once)
    return (rows * factor * (weight.to(at::kFloat) + how.offset)).to(x.scalar_type()).reshape(x.sizes());
  return ((rows * factor).to(x.scalar_type()) * weight).reshape(x.sizes());
}

at::Tensor plain_gated_activation(const std::string& function, const at::Tensor& a, const at::Tensor& b) {
  if (function == "silu") return at::silu(a).mul_(b);
  if (function == "gelu") return at::gelu(a).mul_(b);
  if (function == "gelu_tanh") return at::gelu(a, "tanh").mul_(b);
  throw InternalError("[kernels.gated_activation] unknown function '{}'", function);
}

at::Tensor plain_rotary(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                        const at::Tensor& positions, const RotaryShape& shape) {
  const std::int64_t pairs = cosine.size(1);
  const at::Tensor heads = x.reshape({x.size(0), -1, shape.head_dim}).to(at::kFloat);
  const at::Tensor part = heads.slice(-1, shape.offset, shape.offset + 2 * pairs);
  const at::Tensor first = shape.interleaved ? part.slice(-1, 0, {}, 2) : part.slice(-1, 0, pairs);
  const at::Tensor second = shape.interleaved ? part.slice(-1, 1, {}, 2) : part.slice(-1, pairs);
  const at::Tensor c = cosine.index_select(0, positions).unsqueeze(1), s = sine.index_select(0, positions).unsqueeze(1);
  const at::Tensor turned_first = first * c - second * s, turned_second = second * c + first * s;
  const at::Tensor turned = shape.interleaved ? at::stack({turned_first, turned_second}, -1).flatten(-2)
                                              : at::cat({turned_first, turned_second}, -1);
  const at::Tensor rotated =
      at::cat({heads.slice(-1, 0, shape.offset), turned, heads.slice(-1, shape.offset + 2 * pairs)}, /*dim=*/-1);
  return rotated.to(x.scalar_type()).reshape(x.sizes());
}

namespace {

/// The keys that each query of a sample sees.
at::Tensor visible_keys(std::int64_t length, std::int64_t window, const at::TensorOptions& options) {
  const at::Tensor all = at::ones({length, length}, options.dtype(at::kBool));
  return window > 0 ? all.tril().logical_and(all.triu(1 - window)) : all.tril();
}

/// Heads first: q [1, heads, length, head_dim], k and v with kv_heads.
at::Tensor sample_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionShape& shape) {
  const std::int64_t length = q.size(2);
  if (shape.soft_cap > 0) {
    const auto spread = [&](const at::Tensor& x) {
      return x.to(at::kFloat).repeat_interleave(shape.heads / shape.kv_heads, 1);
    };
    const at::Tensor scores =
        (at::matmul(q.to(at::kFloat), spread(k).transpose(2, 3)) * shape.scale / shape.soft_cap).tanh();
    const at::Tensor seen = visible_keys(length, shape.window, q.options());
    const at::Tensor masked = (scores * shape.soft_cap).masked_fill(seen.logical_not(), -INFINITY);
    return at::matmul(masked.softmax(-1), spread(v)).to(q.scalar_type());
  }
  std::optional<at::Tensor> mask;
  if (shape.window > 0 && shape.window < length) mask = visible_keys(length, shape.window, q.options());
  return at::scaled_dot_product_attention(q, k, v, mask, 0.0, /*is_causal=*/!mask.has_value(), shape.scale,
                                          /*enable_gqa=*/shape.heads != shape.kv_heads);
}

}  // namespace

at::Tensor plain_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::vector<std::int64_t>& offsets, const AttentionShape& shape) {
  at::Tensor output = at::empty({q.size(0), shape.heads * shape.value_dim()}, q.options());
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], end = offsets[i + 1];
    if (begin == end) continue;
    const auto heads_first = [&](const at::Tensor& x, std::int64_t heads, std::int64_t dim) {
      return x.slice(0, begin, end).reshape({1, end - begin, heads, dim}).transpose(1, 2);
    };
    const at::Tensor mixed =
        sample_attention(heads_first(q, shape.heads, shape.head_dim), heads_first(k, shape.kv_heads, shape.head_dim),
                         heads_first(v, shape.kv_heads, shape.value_dim()), shape);
    output.slice(0, begin, end).copy_(mixed[0].transpose(0, 1).reshape({end - begin, -1}));
  }
  return output;
}

}  // namespace layerpress::kernels
