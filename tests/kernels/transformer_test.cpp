#include "layerpress/kernels/transformer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

namespace layerpress::kernels {
namespace {

/// How far a bf16 result is from the fp32 one, relative to its size.
double relative_difference(const at::Tensor& result, const at::Tensor& reference) {
  const at::Tensor expected = reference.to(at::kFloat);
  return ((result.to(at::kFloat) - expected).norm() / expected.norm()).item<double>();
}

double bound(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 4e-3; }

TEST(RmsNorm, FusedEqualsReference) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t size : {1, 7, 64, 576}) {
      const at::Tensor x = (3 * at::randn({33, 2 * size})).to(dtype), weight = at::randn({size}).to(dtype);
      EXPECT_LT(relative_difference(rms_norm(x, weight, 1e-5), rms_norm_reference(x, weight, 1e-5)), bound(dtype));
    }
}

TEST(GatedActivation, FusedEqualsReference) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor a = (20 * at::randn({41, 67})).to(dtype), b = at::randn({41, 67}).to(dtype);
    for (const char* function : {"silu", "gelu", "gelu_tanh"})
      EXPECT_LT(relative_difference(gated_activation(function, a, b),
                                    gated_activation_reference(function, a.to(at::kFloat), b.to(at::kFloat))),
                bound(dtype))
          << function;
  }
}

TEST(GatedActivation, KeepsExtremeInputsFinite) {
  const at::Tensor a = at::tensor({-1e30f, -200.0f, 0.0f, 200.0f, 1e30f});
  const at::Tensor y = gated_activation("silu", a, at::ones({5}));
  EXPECT_TRUE(at::allclose(y, at::silu(a), 1e-6, 1e-7)) << y;
}

TEST(Rotary, FusedEqualsReference) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t pairs : {8, 16}) {  // half of the head, and all of it
      const at::Tensor angle = at::randn({50, pairs});
      const at::Tensor positions = at::randint(0, 50, {77}, at::kLong);
      const at::Tensor x = at::randn({77, 3 * 32}).to(dtype);
      EXPECT_LT(relative_difference(rotary(x, angle.cos(), angle.sin(), positions, 32),
                                    rotary_reference(x, angle.cos(), angle.sin(), positions, 32)),
                bound(dtype));
    }
}

struct AttentionCase {
  std::int64_t heads, kv_heads, head_dim, window;
};

class AttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionTest, PackedSamplesEqualReference) {
  at::manual_seed(4);
  const AttentionCase& c = GetParam();
  const std::vector<std::int64_t> offsets = {0, 1, 1, 64, 66, 195, 342};  // one token, none, a whole tile, ...
  const std::int64_t tokens = offsets.back();
  const AttentionShape shape{c.heads, c.kv_heads, c.head_dim, 0.2, c.window};
  const at::Tensor q = at::randn({tokens, c.heads * c.head_dim}), k = at::randn({tokens, c.kv_heads * c.head_dim}),
                   v = at::randn({tokens, c.kv_heads * c.head_dim});
  EXPECT_LT(relative_difference(attention(q, k, v, offsets, shape), attention_reference(q, k, v, offsets, shape)),
            1e-5);
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kBFloat16); };
  const at::Tensor exact =
      attention_reference(narrow(q).to(at::kFloat), narrow(k).to(at::kFloat), narrow(v).to(at::kFloat), offsets, shape);
  EXPECT_LT(relative_difference(attention(narrow(q), narrow(k), narrow(v), offsets, shape), exact), 5e-3);
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         ::testing::Values(AttentionCase{1, 1, 16, 0}, AttentionCase{9, 3, 64, 0},
                                           AttentionCase{4, 2, 80, 0}, AttentionCase{2, 2, 128, 50},
                                           AttentionCase{4, 1, 32, 1}, AttentionCase{2, 1, 24, 0}));

TEST(Attention, LeavesNoTraceOfOtherSamples) {
  at::manual_seed(5);
  const AttentionShape shape{2, 1, 32, 0.2, 0};
  const auto random = [](std::int64_t features) { return at::randn({100, features}).to(at::kBFloat16); };
  const at::Tensor q = random(64), k = random(32), v = random(32);
  const at::Tensor whole = attention(q, k, v, {0, 40, 100}, shape);
  const at::Tensor alone = attention(q.slice(0, 40), k.slice(0, 40), v.slice(0, 40), {0, 60}, shape);
  EXPECT_TRUE(at::equal(whole.slice(0, 40), alone));
}

}  // namespace
}  // namespace layerpress::kernels
