#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::kernels {
namespace {

constexpr std::int64_t kRowsAtOnce = 256;  // so that scores take no more memory with long spans

}  // namespace

void attend_within_span(at::Tensor& result, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        const SampleSpan& span, const AttentionShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads, dim = shape.head_dim, value_dim = shape.value_dim();
  const auto part = [](const at::Tensor& x, std::int64_t first, std::int64_t last, std::int64_t head,
                       std::int64_t size) { return x.slice(0, first, last).slice(1, head * size, (head + 1) * size); };
  const auto places = at::TensorOptions(at::kLong).device(q.device());
  for (std::int64_t begin = span.first; begin < span.last; begin += kRowsAtOnce) {
    const std::int64_t end = std::min(begin + kRowsAtOnce, span.last), rows = end - begin;
    at::Tensor hidden;
    if (shape.window > 0)
      hidden = at::arange(span.sample, span.last, places)
                   .le(at::arange(begin - shape.window, end - shape.window, places).unsqueeze(1));
    for (std::int64_t head = 0; head < shape.kv_heads; ++head) {
      const at::Tensor queries = part(q, begin, end, head, group * dim).to(at::kFloat).reshape({rows, group, dim});
      const at::Tensor keys = part(k, span.sample, span.last, head, dim).to(at::kFloat);
      at::Tensor scores = at::matmul(queries.transpose(0, 1), keys.t()).mul_(shape.scale);
      if (shape.soft_cap > 0) scores.div_(shape.soft_cap).tanh_().mul_(shape.soft_cap);
      if (hidden.defined()) scores.masked_fill_(hidden, -INFINITY);
      const at::Tensor values = part(v, span.sample, span.last, head, value_dim).to(at::kFloat);
      const at::Tensor mixed = at::matmul(scores.softmax(-1), values);  // [group, rows, value_dim]
      part(result, begin, end, head, group * value_dim).copy_(mixed.transpose(0, 1).reshape({rows, -1}));
    }
  }
}

std::uint64_t span_workspace_bytes(std::int64_t tokens, const AttentionShape& shape) {
  const std::int64_t group = shape.heads / shape.kv_heads, rows = std::min(tokens, kRowsAtOnce);
  const std::int64_t scores = 2 * group * rows * tokens * 4, hidden = rows * tokens;
  const std::int64_t features = (tokens + 2 * group * rows) * (shape.head_dim + shape.value_dim()) * 4;
  return static_cast<std::uint64_t>(scores + hidden + features);
}

}  // namespace layerpress::kernels
