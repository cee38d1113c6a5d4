#include "layerpress/kernels/layers/vision.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace layerpress::kernels {
namespace {

at::Tensor plain_full_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                const AttentionShape& shape) {
  at::Tensor output = at::empty_like(q);
  const auto head = [&](const at::Tensor& x, std::int64_t index) {
    return x.slice(1, index * shape.head_dim, (index + 1) * shape.head_dim);
  };
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const std::int64_t shared = h * shape.kv_heads / shape.heads;
    const at::Tensor scores = head(q, h).to(at::kDouble).matmul(head(k, shared).to(at::kDouble).t()) * shape.scale;
    head(output, h).copy_(at::softmax(scores, -1).matmul(head(v, shared).to(at::kDouble)));
  }
  return output;
}

TEST(FullAttention, AgreesWithTheSlowWay) {
  at::manual_seed(1);
  for (const AttentionShape& shape : {AttentionShape{4, 4, 16, 0.25}, AttentionShape{6, 2, 8, 0.7}})
    for (const auto& [queries, keys] : {std::pair{1, 1}, {5, 3}, {40, 700}, {700, 40}}) {
      const at::Tensor q = at::randn({queries, shape.heads * shape.head_dim});
      const at::Tensor k = at::randn({keys, shape.kv_heads * shape.head_dim}), v = at::randn_like(k);
      const at::Tensor wanted = plain_full_attention(q, k, v, shape);
      EXPECT_TRUE(at::allclose(full_attention(q, k, v, shape), wanted, 1e-5, 1e-5));
      const at::Tensor narrow = full_attention(q.to(at::kBFloat16), k.to(at::kBFloat16), v.to(at::kBFloat16), shape);
      EXPECT_TRUE(at::allclose(narrow.to(at::kFloat), wanted, 0.05, 0.05));
    }
}

TEST(FullAttention, TakesRowsOfWiderTensors) {
  at::manual_seed(2);
  const AttentionShape shape{2, 2, 8, 1};
  const at::Tensor all = at::randn({30, 48});
  const auto part = [&](std::int64_t index) { return all.slice(0, 3, 20).slice(1, index * 16, (index + 1) * 16); };
  const at::Tensor wanted = plain_full_attention(part(0), part(1), part(2), shape);
  EXPECT_TRUE(at::allclose(full_attention(part(0), part(1), part(2), shape), wanted, 1e-5, 1e-5));
}

TEST(FullAttention, OfNoQueriesIsEmpty) {
  const AttentionShape shape{2, 2, 8, 1};
  const at::Tensor none = at::empty({0, 16});
  EXPECT_EQ(full_attention(none, none, none, shape).size(0), 0);
  EXPECT_EQ(full_attention(none, at::randn({3, 16}), at::randn({3, 16}), shape).size(0), 0);
}

TEST(UnfoldPatches, MakesAConvolutionAProduct) {
  at::manual_seed(3);
  const at::Tensor weight = at::randn({10, 3, 4, 4});
  for (const auto& [height, width] : {std::pair{8, 8}, {12, 8}, {15, 9}}) {
    const at::Tensor images = at::randn({2, 3, height, width});
    const at::Tensor wanted = at::conv2d(images, weight, {}, 4).flatten(2).transpose(1, 2);
    const at::Tensor patches = unfold_patches(images, 4);
    ASSERT_EQ(patches.sizes(), (std::vector<std::int64_t>{2, (height / 4) * (width / 4), 48}));
    EXPECT_TRUE(at::allclose(at::linear(patches, weight.flatten(1)), wanted, 1e-4, 1e-4));
  }
}

}  // namespace
}  // namespace layerpress::kernels
