#include <ATen/ATen.h>

#include "layerpress/base/error.h"
#include "layerpress/kernels/transformer.h"

namespace layerpress::kernels {

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const at::Tensor rows = x.reshape({-1, weight.numel()}).to(at::kFloat);
  const at::Tensor factor = at::rsqrt(rows.square().mean(-1, /*keepdim=*/true) + epsilon);
  return ((rows * factor).to(x.scalar_type()) * weight).reshape(x.sizes());
}

at::Tensor gated_activation_reference(const std::string& function, const at::Tensor& a, const at::Tensor& b) {
  if (function == "silu") return at::silu(a).mul_(b);
  if (function == "gelu") return at::gelu(a).mul_(b);
  if (function == "gelu_tanh") return at::gelu(a, "tanh").mul_(b);
  throw InternalError("[kernels.gated_activation] unknown function '{}'", function);
}

at::Tensor rotary_reference(const at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine,
                            const at::Tensor& positions, std::int64_t head_dim) {
  const std::int64_t pairs = cosine.size(1);
  const at::Tensor heads = x.reshape({x.size(0), -1, head_dim}).to(at::kFloat);
  const at::Tensor first = heads.slice(-1, 0, pairs), second = heads.slice(-1, pairs, 2 * pairs);
  const at::Tensor c = cosine.index_select(0, positions).unsqueeze(1), s = sine.index_select(0, positions).unsqueeze(1);
  const at::Tensor rotated =
      at::cat({first * c - second * s, second * c + first * s, heads.slice(-1, 2 * pairs)}, /*dim=*/-1);
  return rotated.to(x.scalar_type()).reshape(x.sizes());
}

at::Tensor attention_reference(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const std::vector<std::int64_t>& offsets, const AttentionShape& shape) {
  at::Tensor output = at::empty_like(q);
  const auto heads_first = [&](const at::Tensor& x, std::int64_t begin, std::int64_t end, std::int64_t heads) {
    return x.slice(0, begin, end).reshape({1, end - begin, heads, shape.head_dim}).transpose(1, 2);
  };
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::int64_t begin = offsets[i], end = offsets[i + 1], length = end - begin;
    if (length == 0) continue;
    std::optional<at::Tensor> mask;
    if (shape.window > 0 && shape.window < length) {
      const at::Tensor all = at::ones({length, length}, q.options().dtype(at::kBool));
      mask = all.tril().logical_and(all.triu(1 - shape.window));
    }
    const at::Tensor mixed = at::scaled_dot_product_attention(
        heads_first(q, begin, end, shape.heads), heads_first(k, begin, end, shape.kv_heads),
        heads_first(v, begin, end, shape.kv_heads), mask, 0.0, /*is_causal=*/!mask.has_value(), shape.scale,
        /*enable_gqa=*/shape.heads != shape.kv_heads);
    output.slice(0, begin, end).copy_(mixed[0].transpose(0, 1).reshape({length, shape.heads * shape.head_dim}));
  }
  return output;
}

}  // namespace layerpress::kernels
