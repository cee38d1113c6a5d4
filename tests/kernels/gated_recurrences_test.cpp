#include "layerpress/kernels/program/gated_recurrences.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "layerpress/base/error.h"
#include "layerpress/kernels/program/sequence_recurrences.h"
#include "layerpress/kernels/program/tensor_program.h"

namespace layerpress::kernels {
namespace {

at::Tensor random(at::IntArrayRef shape, double spread = 1) { return at::randn(shape, at::kDouble) * spread; }

at::Tensor single(const at::Tensor& x) { return x.to(at::kFloat); }

void expect_near(const at::Tensor& mine, const at::Tensor& wanted) {
  EXPECT_LT((mine.to(at::kDouble) - wanted).abs().max().item<double>(), 1e-5 * wanted.abs().max().item<double>());
}

TEST(GatedRecurrences, WkvIsAWeightedMeanOfTheValuesSoFar) {
  at::manual_seed(1);
  const std::int64_t tokens = 9, channels = 70;
  const at::Tensor decay = random({channels}), first = random({channels});
  const at::Tensor key = random({1, tokens, channels}, 3), value = random({1, tokens, channels});
  const at::Tensor wanted = at::empty_like(value);
  for (std::int64_t t = 0; t < tokens; ++t) {
    at::Tensor own = (first + key[0][t]).exp(), sum = own * value[0][t], weights = own;
    for (std::int64_t i = 0; i < t; ++i) {
      own = (key[0][i] - static_cast<double>(t - 1 - i) * decay.exp()).exp();
      sum = sum + own * value[0][i], weights = weights + own;
    }
    wanted[0][t] = sum / weights;
  }
  expect_near(wkv(single(decay), single(first), single(key), single(value)), wanted);
  // Keys whose exponential overflows.
  EXPECT_TRUE(wkv(single(decay), single(first), single(key) + 200, single(value)).isfinite().all().item<bool>());
}

TEST(GatedRecurrences, LinearRecurrenceKeepsAPartOfItsState) {
  at::manual_seed(2);
  const at::Tensor x = random({1, 7, 130}), decay = random({1, 7, 130}).sigmoid(), wanted = at::empty_like(x);
  at::Tensor state = at::zeros({130}, at::kDouble);
  for (std::int64_t t = 0; t < 7; ++t) wanted[0][t] = state = decay[0][t] * state + x[0][t];
  expect_near(linear_recurrence(single(x), single(decay)), wanted);
}

TEST(GatedRecurrences, MlstmReadsItsMatrix) {
  at::manual_seed(3);
  const std::int64_t heads = 3, tokens = 11, rows = 5, columns = 6;
  const at::Tensor q = random({1, heads, tokens, rows}), k = random({1, heads, tokens, rows});
  const at::Tensor v = random({1, heads, tokens, columns});
  const at::Tensor input = random({1, heads, tokens}, 3), forget = random({1, heads, tokens}, 3);
  const at::Tensor wanted = at::empty_like(v);
  for (std::int64_t h = 0; h < heads; ++h) {
    at::Tensor matrix = at::zeros({rows, columns}, at::kDouble), sum = at::zeros({rows}, at::kDouble);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const at::Tensor keep = forget[0][h][t].sigmoid(), take = input[0][h][t].exp();
      matrix = keep * matrix + take * at::outer(k[0][h][t], v[0][h][t]);
      sum = keep * sum + take * k[0][h][t];
      const at::Tensor query = q[0][h][t] / std::sqrt(static_cast<double>(rows));
      wanted[0][h][t] = at::mv(matrix.t(), query) / at::dot(sum, query).abs().clamp_min(1);
    }
  }
  expect_near(mlstm(single(q), single(k), single(v), single(input), single(forget), 0), wanted);
}

TEST(SequenceRecurrences, ScansHaveTheDtypeOfTheirInput) {
  const at::Tensor x = at::rand({1, 5, 2, 4}).to(at::kBFloat16), states = at::rand({1, 5, 1, 3}).to(at::kBFloat16);
  const at::Tensor steps = at::rand({1, 5, 2}), decay = -at::rand({2});
  const at::Tensor result = mamba2_scan(x, steps, decay, states, states, {}, {}, /*softplus=*/false, 0, 10);
  EXPECT_EQ(result.scalar_type(), at::kBFloat16);
  EXPECT_EQ(mamba2_scan(single(x), steps, decay, states, states, {}, {}, false, 0, 10).scalar_type(), at::kFloat);
}

TEST(GatedRecurrences, GroupedProductTakesEachGroupTimesItsMatrix) {
  at::manual_seed(4);
  ProgramInputs inputs;
  inputs.values = {at::randn({5, 3})};
  inputs.weights = {at::randn({3, 3, 2}), at::tensor({2, 0, 3}, at::kLong)};
  const auto program = TensorProgram::compile(
      R"({"inputs":[{"shape":[-1,3],"dtype":"float32"}],"weights":["float32","int64"],"constants":0,"axis":0,)"
      R"("result":{"v":0},"steps":[["layerpress.grouped_product.default",[{"i":0},{"w":0},{"w":1}],0]]})");
  const at::Tensor &x = inputs.values[0], &weights = inputs.weights[0];
  EXPECT_TRUE(program->run(inputs, 5).allclose(
      at::cat({at::matmul(x.slice(0, 0, 2), weights[0]), at::matmul(x.slice(0, 2), weights[2])})));
  for (const at::Tensor& counts : {at::tensor({2, 0, 4}, at::kLong), at::tensor({6, -1, 0}, at::kLong)}) {
    inputs.weights[1] = counts;
    EXPECT_THROW(program->run(inputs, 5), CheckpointError);
  }
}

}  // namespace
}  // namespace layerpress::kernels
