#include "layerpress/kernels/layers/transformer.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace layerpress::kernels {
namespace {

/// How far a bf16 result is from the fp32 one, relative to its size.
double difference_in_float(const at::Tensor& result, const at::Tensor& reference) {
  const at::Tensor expected = reference.to(at::kFloat);
  return ((result.to(at::kFloat) - expected).norm() / expected.norm()).item<double>();
}

double bound(at::ScalarType dtype) { return dtype == at::kFloat ? 2e-6 : 4e-3; }

TEST(RmsNorm, FusedEqualsPlain) {
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t size : {1, 7, 64, 576}) {
      const at::Tensor x = (3 * at::randn({33, 2 * size})).to(dtype), weight = at::randn({size}).to(dtype);
      EXPECT_LT(difference_in_float(rms_norm(x, weight, 1e-5), plain_rms_norm(x, weight, 1e-5)), bound(dtype));
    }
}

TEST(RmsNorm, RoundedOnceEqualsPlain) {
  at::manual_seed(8);
  const NormWeight how{.offset = 1, .rounded_once = true};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t size : {1, 7, 64, 5000}) {
      const at::Tensor x = (3 * at::randn({33, 2 * size})).to(dtype), weight = (at::rand({size}) - 0.5).to(dtype);
      const at::Tensor y = rms_norm(x, weight, 1e-5, how);
      EXPECT_LT(difference_in_float(y, plain_rms_norm(x, weight, 1e-5, how)), 2e-4) << size;
      // One rounding leaves at most half a step of bf16 to the exact result; two leave more somewhere.
      const at::Tensor exact = plain_rms_norm(x.to(at::kFloat), weight.to(at::kFloat), 1e-5, how);
      EXPECT_LT(((y.to(at::kFloat) - exact).abs() / exact.abs()).max().item<double>(), 1.001 / 256) << size;
      EXPECT_GT(difference_in_float(rms_norm(x, weight, 1e-5), exact), 0.1) << "the offset counts";
    }
}

TEST(GatedActivation, FusedEqualsPlain) {
  at::manual_seed(2);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const at::Tensor a = (20 * at::randn({41, 67})).to(dtype), b = at::randn({41, 67}).to(dtype);
    for (const char* function : {"silu", "gelu", "gelu_tanh"})
      EXPECT_LT(difference_in_float(gated_activation(function, a, b),
                                    plain_gated_activation(function, a.to(at::kFloat), b.to(at::kFloat))),
                bound(dtype))
          << function;
  }
}

TEST(GatedActivation, KeepsExtremeInputsFinite) {
  const at::Tensor a = at::tensor({-1e30f, -200.0f, 0.0f, 200.0f, 1e30f});
  const at::Tensor y = gated_activation("silu", a, at::ones({5}));
  EXPECT_TRUE(at::allclose(y, at::silu(a), 1e-6, 1e-7)) << y;
}

TEST(AddWeightedRows, EqualsAtenToTheBit) {
  at::manual_seed(4);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t features : {1, 33, 576}) {
      const at::Tensor start = at::randn({50, features}).to(dtype), weights = at::rand({50}).to(dtype);
      const at::Tensor rows = at::randperm(50).narrow(0, 0, 20), output = at::randn({20, features}).to(dtype);
      at::Tensor sum = start.clone();
      add_weighted_rows(sum, output, rows, weights);
      const at::Tensor added = output * weights.index_select(0, rows).unsqueeze(1);
      EXPECT_TRUE(at::equal(sum, start.index_add(0, rows, added))) << features;
    }
}

TEST(Rotary, FusedEqualsPlain) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat})
    for (const std::int64_t pairs : {8, 16}) {  // half of the head, and all of it
      const at::Tensor angle = at::randn({50, pairs});
      const at::Tensor positions = at::randint(0, 50, {77}, at::kLong);
      const at::Tensor x = at::randn({77, 3 * 32}).to(dtype);
      for (const RotaryShape& shape : {RotaryShape{32}, RotaryShape{32, 0, true}, RotaryShape{48, 11},
                                       RotaryShape{48, 16, true}, RotaryShape{96, 64}})
        EXPECT_LT(difference_in_float(rotary(x, angle.cos(), angle.sin(), positions, shape),
                                      plain_rotary(x, angle.cos(), angle.sin(), positions, shape)),
                  bound(dtype))
            << shape.head_dim << " " << shape.offset;
    }
}

TEST(Rotary, TurnsEachPairByItsAngle) {
  // Two heads of 6; pairs of the part at offset 2, turned by 90 degrees and not at all.
  const at::Tensor x = at::arange(1, 13, at::kFloat).reshape({1, 12});
  const at::Tensor cosine = at::tensor({0.0f, 1.0f}).reshape({1, 2}), sine = at::tensor({1.0f, 0.0f}).reshape({1, 2});
  const at::Tensor position = at::zeros({1}, at::kLong);
  const at::Tensor halves = at::tensor({1.0f, 2.0f, -5.0f, 4.0f, 3.0f, 6.0f, 7.0f, 8.0f, -11.0f, 10.0f, 9.0f, 12.0f});
  const at::Tensor beside = at::tensor({1.0f, 2.0f, -4.0f, 3.0f, 5.0f, 6.0f, 7.0f, 8.0f, -10.0f, 9.0f, 11.0f, 12.0f});
  EXPECT_TRUE(at::equal(rotary(x, cosine, sine, position, {6, 2})[0], halves));
  EXPECT_TRUE(at::equal(plain_rotary(x, cosine, sine, position, {6, 2})[0], halves));
  EXPECT_TRUE(at::equal(rotary(x, cosine, sine, position, {6, 2, true})[0], beside));
  EXPECT_TRUE(at::equal(plain_rotary(x, cosine, sine, position, {6, 2, true})[0], beside));
}

struct AttentionCase {
  std::int64_t heads, kv_heads, head_dim, window;
  double soft_cap = 0;
  std::int64_t value_dim = 0;
};

class AttentionTest : public ::testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionTest, PackedSamplesEqualPlain) {
  at::manual_seed(4);
  const AttentionCase& own = GetParam();
  const std::vector<std::int64_t> offsets = {0, 1, 1, 64, 66, 195, 342};  // one token, none, a whole tile, ...
  const std::int64_t tokens = offsets.back();
  const AttentionShape shape{own.heads, own.kv_heads, own.head_dim, 0.2, own.window, own.soft_cap, own.value_dim};
  const at::Tensor q = at::randn({tokens, own.heads * own.head_dim}),
                   k = at::randn({tokens, own.kv_heads * own.head_dim}),
                   v = at::randn({tokens, own.kv_heads * shape.value_dim()});
  EXPECT_LT(difference_in_float(attention(q, k, v, offsets, shape), plain_attention(q, k, v, offsets, shape)), 1e-5);
  for (const auto& [dtype, most] : {std::pair{at::kBFloat16, 5e-3}, {at::kHalf, 5e-4}}) {
    const at::Tensor a = q.to(dtype), b = k.to(dtype), c = v.to(dtype);
    const at::Tensor exact = plain_attention(a.to(at::kFloat), b.to(at::kFloat), c.to(at::kFloat), offsets, shape);
    EXPECT_LT(difference_in_float(attention(a, b, c, offsets, shape), exact), most) << at::toString(dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionTest,
                         ::testing::Values(AttentionCase{1, 1, 16, 0}, AttentionCase{9, 3, 64, 0},
                                           AttentionCase{4, 2, 80, 0}, AttentionCase{2, 2, 128, 50},
                                           AttentionCase{4, 1, 32, 1}, AttentionCase{2, 1, 24, 0},
                                           AttentionCase{4, 2, 32, 0, 1.5}, AttentionCase{6, 2, 24, 50, 0.7},
                                           AttentionCase{2, 2, 48, 0, 0, 32}, AttentionCase{4, 2, 40, 20, 0, 16},
                                           AttentionCase{4, 4, 16, 0, 0, 40}));

TEST(Attention, CapsItsScores) {
  at::manual_seed(9);
  const at::Tensor q = 5 * at::randn({300, 32}), k = 5 * at::randn({300, 16}), v = at::randn({300, 16});
  const AttentionShape plain{2, 1, 16, 1}, capped{2, 1, 16, 1, 0, 3}, hardly{2, 1, 16, 1, 0, 1e6};
  const at::Tensor without = attention(q, k, v, {0, 300}, plain);
  EXPECT_LT(difference_in_float(attention(q, k, v, {0, 300}, hardly), without), 1e-4);
  EXPECT_GT(difference_in_float(attention(q, k, v, {0, 300}, capped), without), 0.3);
}

TEST(Attention, HidesNoNumberThatIsNone) {
  for (const double soft_cap : {0.0, 3.0}) {
    const AttentionShape shape{2, 1, 32, 0.2, 0, soft_cap};
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
      const at::Tensor v = at::randn({100, 32}).to(dtype);
      at::Tensor q = at::randn({100, 64}).to(dtype), k = at::randn({100, 32}).to(dtype);
      k[60][3] = std::nan("");  // all queries behind it see it
      EXPECT_TRUE(attention(q, k, v, {0, 40, 100}, shape).slice(0, 60).isnan().all().item<bool>());
      EXPECT_TRUE(attention(q, k, v, {0, 40, 100}, shape).slice(0, 0, 40).isfinite().all().item<bool>());
      q[50][40] = std::nan("");  // in the second head
      const at::Tensor row = attention(q, k, v, {0, 40, 100}, shape)[50];
      EXPECT_TRUE(row.slice(0, 32).isnan().all().item<bool>());
    }
  }
}

TEST(Attention, LeavesNoTraceOfOtherSamples) {
  at::manual_seed(5);
  const AttentionShape shape{2, 1, 32, 0.2, 0};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    const auto random = [&](std::int64_t features) { return at::randn({100, features}).to(dtype); };
    const at::Tensor q = random(64), k = random(32), v = random(32);
    const at::Tensor whole = attention(q, k, v, {0, 40, 100}, shape);
    const at::Tensor alone = attention(q.slice(0, 40), k.slice(0, 40), v.slice(0, 40), {0, 60}, shape);
    EXPECT_TRUE(at::equal(whole.slice(0, 40), alone));
    // The first keys' sums are the same whatever comes behind.
    const at::Tensor shorter = attention(q.slice(0, 0, 30), k.slice(0, 0, 30), v.slice(0, 0, 30), {0, 30}, shape);
    EXPECT_TRUE(at::equal(whole.slice(0, 0, 30), shorter));
  }
}

}  // namespace
}  // namespace layerpress::kernels
