// Causal attention over packed samples: with the kernel of the instruction set or the device if there is one, otherwise
// with ATen, sample by sample.
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <optional>

#include "layerpress/kernels/layers/attention_tiles.h"
#include "layerpress/kernels/layers/transformer.h"
#include "layerpress/kernels/products/product.h"

namespace layerpress::kernels {

std::int64_t longest_sample(const std::vector<std::int64_t>& offsets) {
  std::int64_t longest = 0;
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) longest = std::max(longest, offsets[i + 1] - offsets[i]);
  return longest;
}

namespace {

/// Whether ATen's scaled_dot_product_attention does it.
bool is_plain(const AttentionShape& shape) { return shape.soft_cap == 0 && shape.value_dim() == shape.head_dim; }

/// Values [tokens, kv_heads * value_dim] as [tokens, kv_heads, head_dim], widened by zeros.
at::Tensor widened_values(const at::Tensor& v, const AttentionShape& shape) {
  const at::Tensor heads = v.reshape({v.size(0), shape.kv_heads, shape.value_dim()});
  const std::int64_t missing = shape.head_dim - shape.value_dim();
  return missing == 0 ? heads : at::constant_pad_nd(heads, {0, missing});
}

/// The result for padded values, [tokens, heads, head_dim], as [tokens, heads * value_dim].
at::Tensor narrowed_heads(const at::Tensor& mixed, const AttentionShape& shape) {
  return mixed.slice(-1, 0, shape.value_dim()).reshape({mixed.size(0), shape.heads * shape.value_dim()});
}

/// One sample through the kernel for bf16 dot products, its values widened by zeros. Returns [length, heads * value_dim].
at::Tensor widened_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                             const AttentionShape& shape) {
  const std::int64_t length = q.size(0);
  AttentionShape wide = shape;
  wide.value_head_dim = 0;
  const at::Tensor values = widened_values(v, shape).reshape({length, -1});
  const at::Tensor mixed = attention_on_tiles(q, k, values, {0, length}, wide, /*pairs=*/true);
  return narrowed_heads(mixed.reshape({length, shape.heads, shape.head_dim}), shape);
}

/// Whether ATen's flash attention for packed samples supports this.
bool has_packed_attention(at::Device device, at::ScalarType dtype, const AttentionShape& shape) {
  constexpr std::int64_t kWidest = 256, kStep = 8;
  const bool half = dtype == at::kBFloat16 || dtype == at::kHalf;
  return device.is_cuda() && half && shape.soft_cap == 0 && shape.head_dim <= kWidest && shape.head_dim % kStep == 0 &&
         shape.value_dim() <= shape.head_dim;
}

/// All samples in one call, without masks.
at::Tensor packed_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const std::vector<std::int64_t>& offsets, const AttentionShape& shape) {
  const auto heads = [&](const at::Tensor& x, std::int64_t count) {
    return x.reshape({x.size(0), count, shape.head_dim});
  };
  // Through pinned memory, so that the copy does not wait for earlier work on the device.
  const at::Tensor starts = at::tensor(offsets, at::kInt).pin_memory().to(q.device(), /*non_blocking=*/true);
  const std::int64_t longest = longest_sample(offsets);
  std::optional<std::int64_t> before, behind;
  if (shape.window > 0 && shape.window < longest) before = shape.window - 1, behind = 0;
  const auto result = at::_flash_attention_forward(
      heads(q, shape.heads), heads(k, shape.kv_heads), widened_values(v, shape), starts, starts, longest, longest,
      /*dropout_p=*/0.0, /*is_causal=*/!before.has_value(), /*return_debug_mask=*/false, shape.scale, before, behind);
  return narrowed_heads(std::get<0>(result), shape);
}

/// Query rows whose scores are in memory at once.
constexpr std::int64_t kQueryRows = 256;

/// Computes one sample with fp32 matrix products, a block of query rows at a time.
at::Tensor attention_in_blocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                               const AttentionShape& shape) {
  const std::int64_t length = query.size(0), group = shape.heads / shape.kv_heads;
  const auto heads_first = [&](const at::Tensor& x, std::int64_t dim) {
    return x.reshape({length, shape.kv_heads, -1, dim}).permute({1, 2, 0, 3}).to(at::kFloat);
  };
  const at::Tensor q = heads_first(query, shape.head_dim);  // [kv_heads, group, length, head_dim]
  const at::Tensor k = heads_first(key, shape.head_dim).squeeze(1),
                   v = heads_first(value, shape.value_dim()).squeeze(1);
  at::Tensor output = at::empty({length, shape.heads * shape.value_dim()}, query.options());
  for (std::int64_t begin = 0; begin < length; begin += kQueryRows) {
    const std::int64_t end = std::min(length, begin + kQueryRows), rows = end - begin;
    const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, begin + 1 - shape.window) : 0;
    const at::Tensor block = q.slice(2, begin, end).reshape({shape.kv_heads, group * rows, shape.head_dim});
    at::Tensor scores = at::bmm(block, k.slice(1, first, end).transpose(1, 2));
    if (shape.soft_cap > 0)
      scores.mul_(shape.scale / shape.soft_cap).tanh_().mul_(shape.soft_cap);
    else
      scores.mul_(shape.scale);
    const at::Tensor all = at::ones({rows, end - first}, scores.options().dtype(at::kBool));
    at::Tensor hidden = all.triu(begin - first + 1);
    if (shape.window > 0) hidden.logical_or_(all.tril(begin - first - shape.window));
    scores.view({shape.kv_heads, group, rows, end - first})
        .masked_fill_(hidden, -std::numeric_limits<float>::infinity());
    const at::Tensor mixed = at::bmm(scores.softmax(-1), v.slice(1, first, end));
    output.slice(0, begin, end)
        .view({rows, shape.kv_heads, group, shape.value_dim()})
        .copy_(mixed.view({shape.kv_heads, group, rows, shape.value_dim()}).permute({2, 0, 1, 3}));
  }
  return output;
}

std::uint64_t block_bytes(std::int64_t length, const AttentionShape& shape) {
  const std::int64_t copies = length * (2 * shape.heads + 2 * shape.kv_heads) * (shape.head_dim + shape.value_dim());
  const std::int64_t scores = 2 * shape.heads * kQueryRows * length;
  return static_cast<std::uint64_t>(copies + scores) * 4 + static_cast<std::uint64_t>(3 * kQueryRows * length);
}

}  // namespace

std::uint64_t attention_workspace_bytes(const std::vector<std::int64_t>& offsets, const AttentionShape& shape,
                                        at::Device device, at::ScalarType dtype, int threads) {
  const std::int64_t length = longest_sample(offsets);
  if (has_packed_attention(device, dtype, shape)) {
    // The softmax's sums, and the padded values and result.
    const std::int64_t wide = is_plain(shape) ? 0 : (shape.kv_heads + shape.heads) * shape.head_dim * 2;
    return static_cast<std::uint64_t>(offsets.back() * (shape.heads * 4 + wide));
  }
  if (device.is_cpu() && has_value_type(dtype)) {
    const bool pairs = has_pairs_attention(dtype, shape);
    const std::int64_t widened =
        is_plain(shape) || !pairs ? 0 : length * (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim * 2;
    return static_cast<std::uint64_t>(threads * attention_tiles_bytes(length, shape, pairs) + widened);
  }
  if (!is_plain(shape)) return block_bytes(length, shape);
  // Per sample: keys and values repeated for the heads, the result, its copy in the order of the tokens, and a mask.
  const std::int64_t row = shape.heads * shape.head_dim;
  return static_cast<std::uint64_t>(length * row * 4) * c10::elementSize(dtype) +
         (shape.window > 0 && shape.window < length ? static_cast<std::uint64_t>(length * length * 7) : 0);
}

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const std::vector<std::int64_t>& offsets, const AttentionShape& shape) {
  if (has_packed_attention(q.device(), q.scalar_type(), shape)) return packed_attention(q, k, v, offsets, shape);
  const bool on_tiles = q.is_cpu() && has_value_type(q.scalar_type());
  const bool pairs = on_tiles && has_pairs_attention(q.scalar_type(), shape);
  if (on_tiles && (!pairs || is_plain(shape))) return attention_on_tiles(q, k, v, offsets, shape, pairs);
  if (is_plain(shape)) return plain_attention(q, k, v, offsets, shape);
  at::Tensor output = at::empty({q.size(0), shape.heads * shape.value_dim()}, q.options());
  for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
    const auto sample = [&](const at::Tensor& x) { return x.slice(0, offsets[i], offsets[i + 1]); };
    if (offsets[i] == offsets[i + 1]) continue;
    sample(output).copy_(pairs ? widened_attention(sample(q), sample(k), sample(v), shape)
                               : attention_in_blocks(sample(q), sample(k), sample(v), shape));
  }
  return output;
}

}  // namespace layerpress::kernels
