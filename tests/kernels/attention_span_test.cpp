#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layerpress/kernels/layers/transformer.h"

namespace layerpress::kernels {
namespace {

/// Attention of one sample in double precision, with a list of its own of what each query sees.
at::Tensor textbook(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& seen,
                    const AttentionShape& shape) {
  const auto heads = [&](const at::Tensor& x, std::int64_t count) {
    return x.to(at::kDouble).view({x.size(0), count, -1}).transpose(0, 1).repeat_interleave(shape.heads / count, 0);
  };
  at::Tensor scores = at::matmul(heads(q, shape.heads), heads(k, shape.kv_heads).transpose(1, 2)) * shape.scale;
  if (shape.soft_cap > 0) scores = (scores / shape.soft_cap).tanh() * shape.soft_cap;
  const at::Tensor shares = scores.masked_fill(seen.logical_not(), -INFINITY).softmax(-1);
  return at::matmul(shares, heads(v, shape.kv_heads)).transpose(0, 1).reshape({q.size(0), -1});
}

/// The second of two samples has tokens 3 to `last` that see each other.
double difference(const AttentionShape& shape, std::int64_t length, std::int64_t last, at::ScalarType dtype) {
  at::manual_seed(5);
  const std::int64_t before = 7;
  const auto made = [&](std::int64_t features) { return at::randn({before + length, features}).to(dtype); };
  const at::Tensor q = made(shape.heads * shape.head_dim), k = made(shape.kv_heads * shape.head_dim),
                   v = made(shape.kv_heads * shape.value_dim());
  at::Tensor mine = attention(q, k, v, {0, before, before + length}, shape);
  attend_within_span(mine, q, k, v, {before, before + 3, before + last}, shape);
  at::Tensor seen = at::ones({length, length}, at::kBool).tril();
  seen.slice(0, 3, last).slice(1, 3, last).fill_(true);
  if (shape.window > 0) seen = seen.logical_and(at::ones({length, length}, at::kBool).triu(1 - shape.window));
  const auto own = [&](const at::Tensor& x) { return x.slice(0, before); };
  const at::Tensor wanted = textbook(own(q), own(k), own(v), seen, shape);
  return ((own(mine).to(at::kDouble) - wanted).norm() / wanted.norm()).item<double>();
}

TEST(AttentionSpan, TokensSeeLaterOnesOfTheirImage) {
  for (const std::int64_t last : {4, 8, 11})
    EXPECT_LT(difference({4, 2, 16, 0.25}, 11, last, at::kFloat), 2e-6) << last;
  EXPECT_LT(difference({4, 2, 16, 0.25}, 600, 560, at::kFloat), 2e-6) << "more rows than are computed at once";
  EXPECT_LT(difference({4, 4, 16, 0.25}, 40, 30, at::kBFloat16), 6e-3);
}

TEST(AttentionSpan, KeepsWindowsCapsAndSizesOfValues) {
  EXPECT_LT(difference({.heads = 4, .kv_heads = 2, .head_dim = 16, .scale = 0.25, .window = 3}, 30, 20, at::kFloat),
            2e-6);
  EXPECT_LT(difference({4, 1, 16, 0.5, 0, 2.0}, 30, 20, at::kFloat), 2e-6);
  EXPECT_LT(difference({4, 2, 16, 0.25, 5, 0, 24}, 30, 20, at::kFloat), 2e-6);
}

}  // namespace
}  // namespace layerpress::kernels
