// The kernels on a GPU against the CPU's or double precision. Without a GPU these tests are skipped.
#include "tests/kernels/on_device.h"

#include <ATen/ATen.h>
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/layers/linear.h"
#include "layerpress/kernels/layers/transformer.h"
#include "tests/kernels/gptq_problems.h"
#include "tests/kernels/plain_products.h"

namespace layerpress::kernels {
namespace {

ColumnScales on_gpu(const ColumnScales& scales) {
  ColumnScales there = scales;
  there.scale = scales.scale.to(kGpu);
  if (scales.zero_point.defined()) there.zero_point = scales.zero_point.to(kGpu);
  return there;
}

void expect_close(const at::Tensor& found, const at::Tensor& expected, double tolerance) {
  const at::Tensor own = found.cpu().to(at::kDouble), other = expected.to(at::kDouble);
  EXPECT_LE((own - other).norm().item<double>(), tolerance * other.norm().item<double>());
}

/// Also of more features than rows of the sums are computed at once, and into sums that are not 0.
TEST_F(OnDevice, GramMatricesOfHalvesAreSumsInFp32) {
  at::manual_seed(3);
  for (const std::int64_t features : {320, 2300}) {
    const at::Tensor x = at::randn({700, features}).to(at::kBFloat16), reference = at::randn_like(x);
    at::Tensor gram = at::zeros({features, features}, at::TensorOptions(kGpu).dtype(at::kFloat)),
               cross = at::zeros_like(gram);
    for (const at::Tensor& part : {x.slice(0, 0, 300), x.slice(0, 300)}) accumulate_gram(gram, part.to(kGpu));
    accumulate_cross_gram(cross, reference.to(kGpu), x.to(kGpu));
    expect_close(gram.triu(), plain_gram(x).triu(), 1e-5);
    expect_close(cross, plain_cross_gram(reference, x), 3e-3);  // the difference is rounded to bf16
  }
}

TEST_F(OnDevice, ScalesAreThoseOfTheCpu) {
  at::manual_seed(4);
  const at::Tensor importance = at::rand({520}) + 0.01;
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const bool symmetric : {true, false})
      for (const ScaleGrid& grid : {ScaleGrid{1, 128}, ScaleGrid{1, 520}, ScaleGrid{16, 128}}) {
        const at::Tensor weight = at::randn({100, 520}).to(dtype);
        const ScaleSearch search{.shrink = {1, 0.95, 0.9, 0.85, 0.8, 0.7}};
        const RangeRule rule{.element = {}, .symmetric = symmetric};
        const ChosenScales here = search_scales(weight, grid, rule, search, {ScaleType::kHalf}, importance);
        const ChosenScales there =
            search_scales(weight.to(kGpu), grid, rule, search, {ScaleType::kHalf}, importance.to(kGpu));
        EXPECT_GT(equal_share(there.scale.cpu(), here.scale), 0.98) << grid.block_columns << symmetric;
      }
}

TEST_F(OnDevice, GptqChoosesTheCodesOfTheCpu) {
  for (const bool fp8 : {false, true})
    for (const bool symmetric : {true, false}) {
      if (fp8 && !symmetric) continue;
      for (const std::int64_t columns : {96, 320, 1100}) {
        const Problem problem =
            make_problem(200, columns, columns % 64 == 0 ? 64 : columns / 4, symmetric, fp8 ? 448 : 7.5);
        const ElementType element = fp8 ? kE4m3 : integers(4);
        const auto factor = factorize(problem.gram, {});
        const GptqResult here = gptq({{problem.weight, problem.scales}}, *factor, element);
        const HessianFactor moved{factor->order.to(kGpu), factor->feedback.to(kGpu), factor->pivots.to(kGpu)};
        const GptqResult there = gptq({{problem.weight.to(kGpu), on_gpu(problem.scales)}}, moved, element);
        EXPECT_GT(equal_share(there.codes[0].cpu(), here.codes[0]), 0.995) << columns << symmetric << fp8;
        EXPECT_NEAR(there.loss / here.loss, 1.0, 1e-3) << columns << symmetric << fp8;
      }
    }
}

TEST_F(OnDevice, GptqChoosesTheScalesOfTheCpu) {
  for (const bool symmetric : {true, false}) {
    SearchProblem made = make_search_problem(150, 256, 64, symmetric, true);
    const auto factor = factorize(made.problem.gram, made.options);
    const GptqWeight there{made.problem.weight.to(kGpu), on_gpu(made.problem.scales)};
    const GptqResult here = made.solve(*factor);
    const HessianFactor moved{factor->order.to(kGpu), factor->feedback.to(kGpu), factor->pivots.to(kGpu)};
    const GptqResult result = gptq({there}, moved, made.search.rule.element, 128, made.search);
    EXPECT_NEAR(result.loss / here.loss, 1.0, 1e-3) << symmetric;
    const at::Tensor ratio = there.scales.scale.cpu() / made.problem.scales.scale;
    EXPECT_GT((ratio - 1).abs().lt(1e-4).to(at::kDouble).mean().item<double>(), 0.97) << symmetric;
  }
}

TEST_F(OnDevice, FactorizationsAgree) {
  const Problem problem = make_problem(1, 300, 300, true, 7.5);
  const auto here = factorize(problem.gram, {}), there = factorize(problem.gram.to(kGpu), {});
  ASSERT_TRUE(here && there);
  EXPECT_TRUE(at::equal(there->order.cpu(), here->order));
  expect_close(there->feedback, here->feedback, 1e-3);
  expect_close(there->pivots, here->pivots, 1e-3);
}

TEST_F(OnDevice, PiecesOfALayerAgree) {
  at::manual_seed(5);
  const auto half = [](at::IntArrayRef sizes) { return at::randn(sizes).to(at::kBFloat16); };
  const at::Tensor x = half({130, 256}), y = half({130, 256}), weight = half({256}), matrix = half({192, 256});
  const at::Tensor angles = at::randn({130, 16}), places = at::arange(130);
  const auto to = [](const at::Tensor& tensor) { return tensor.to(kGpu); };
  expect_close(rms_norm(to(x), to(weight), 1e-5), rms_norm(x, weight, 1e-5), 1e-2);
  expect_close(gated_activation("silu", to(x), to(y)), gated_activation("silu", x, y), 1e-2);
  expect_close(rotary(to(x), to(angles.cos()), to(angles.sin()), to(places), {.head_dim = 32}),
               rotary(x, angles.cos(), angles.sin(), places, {.head_dim = 32}), 1e-2);
  expect_close(kernels::linear(to(x), to(matrix)), kernels::linear(x, matrix), 1e-2);
}

TEST_F(OnDevice, AttentionAgrees) {
  at::manual_seed(6);
  const std::vector<std::int64_t> offsets{0, 1, 50, 50, 130};  // one token, none, and a rest
  for (const std::int64_t window : {0, 20})
    for (const std::int64_t value_dim : {32, 16})
      for (const double soft_cap : {0.0, 30.0})
        for (const auto dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
          const AttentionShape shape{8, 2, 32, 0.2, window, soft_cap, value_dim};
          const at::Tensor q = at::randn({130, 8 * 32}).to(dtype), k = at::randn({130, 2 * 32}).to(dtype);
          const at::Tensor v = at::randn({130, 2 * value_dim}).to(dtype);
          SCOPED_TRACE(fmt::format("window {}, values {}, cap {}", window, value_dim, soft_cap));
          expect_close(attention(q.to(kGpu), k.to(kGpu), v.to(kGpu), offsets, shape),
                       attention(q, k, v, offsets, shape), 1e-2);
        }
}

}  // namespace
}  // namespace layerpress::kernels
