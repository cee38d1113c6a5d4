#include "layerpress/gguf/blocks/block_gptq.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <string>

#include "layerpress/base/error.h"
#include "layerpress/gguf/blocks/block_rows.h"
#include "layerpress/kernels/products/gram.h"

namespace layerpress::gguf {
namespace {

struct GptqProblem {
  at::Tensor weight, gram;
  kernels::HessianFactor factor;
};

/// Columns are in an order that keeps blocks together, or in natural order if their size is 0.
GptqProblem correlated_problem(std::int64_t rows, std::int64_t columns, std::int64_t block) {
  at::manual_seed(11);
  GptqProblem problem;
  problem.weight = at::randn({rows, columns}) * 0.05;
  const at::Tensor sizes = (at::randn({columns}) * 0.7).exp();
  const at::Tensor x = (at::randn({2 * columns, columns}) +
                        at::randn({2 * columns, columns / 8}).mm(at::randn({columns / 8, columns}) * 0.5)) *
                       sizes;
  problem.gram = at::zeros({columns, columns});
  kernels::accumulate_gram(problem.gram, x);
  problem.factor = *kernels::factorize(problem.gram, {.activation_order = block > 0, .group_columns = block});
  return problem;
}

kernels::HessianFactor natural_factor(const GptqProblem& problem) {
  return *kernels::factorize(problem.gram, {.activation_order = false});
}

double proxy_loss(const GptqProblem& problem, const BlockType& type, const at::Tensor& blocks) {
  const at::Tensor difference =
      (decode_rows(type, blocks, problem.weight.size(1)) - problem.weight.to(at::kFloat)).to(at::kDouble);
  at::Tensor hessian = kernels::symmetric_from_upper(problem.gram.to(at::kDouble));
  hessian.diagonal().add_(0.01 * hessian.diagonal().mean());
  return difference.mm(hessian).mul(difference).sum().item<double>();
}

class BlockGptqTest : public ::testing::TestWithParam<std::string> {
 protected:
  const GridType& type() const { return dynamic_cast<const GridType&>(*find_block_type(GetParam())); }
};

TEST_P(BlockGptqTest, LosesMuchLessThanRounding) {
  // With so many rows, the sums' order, which depends on the CPU and on threads, changes losses by less than the second pass does.
  const GptqProblem problem = correlated_problem(160, 512, type().block_values());
  const at::Tensor importance = problem.gram.diagonal().contiguous();
  const double rounding = proxy_loss(problem, type(), round_rows(type(), problem.weight, importance));
  const BlockGptqResult once = gptq_blocks(type(), problem.weight, problem.factor, 1);
  const BlockGptqResult twice = gptq_blocks(type(), problem.weight, problem.factor, 2);
  EXPECT_LT(proxy_loss(problem, type(), once.blocks), 0.3 * rounding);
  EXPECT_LT(twice.loss, once.loss);
  EXPECT_LT(once.loss, 0.97 * gptq_blocks(type(), problem.weight, natural_factor(problem), 1).loss);
  // The recursion knows the loss only if it feeds the errors of the stored values back.
  EXPECT_NEAR(once.loss / proxy_loss(problem, type(), once.blocks), 1, 1e-3);
  EXPECT_NEAR(twice.loss / proxy_loss(problem, type(), twice.blocks), 1, 1e-3);
}

TEST_P(BlockGptqTest, RoundsRowsByThemselves) {
  const GptqProblem problem = correlated_problem(70, 256, type().block_values());
  const at::Tensor whole = gptq_blocks(type(), problem.weight, problem.factor).blocks;
  for (const auto& [first, count] : {std::pair{0, 1}, {5, 33}, {31, 39}, {69, 1}})
    EXPECT_TRUE(gptq_blocks(type(), problem.weight.narrow(0, first, count), problem.factor)
                    .blocks.equal(whole.narrow(0, first, count)));
  const at::Tensor stored = problem.weight.to(at::kBFloat16);
  EXPECT_TRUE(gptq_blocks(type(), stored, problem.factor)
                  .blocks.equal(gptq_blocks(type(), stored.to(at::kFloat), problem.factor).blocks));
}

INSTANTIATE_TEST_SUITE_P(Types, BlockGptqTest,
                         ::testing::Values("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
                                           "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4"),
                         [](const auto& info) { return info.param; });

TEST(BlockGptq, EndsWithAnyNumberOfBlocks) {
  const GptqProblem problem = correlated_problem(9, 352, 32);
  const BlockType& type = *find_block_type("Q4_1");
  const BlockGptqResult result = gptq_blocks(dynamic_cast<const GridType&>(type), problem.weight, problem.factor);
  EXPECT_NEAR(result.loss / proxy_loss(problem, type, result.blocks), 1, 1e-3);
}

TEST(BlockGptq, RoundsZerosAndColumnsWithoutData) {
  GptqProblem problem = correlated_problem(8, 256, 0);
  problem.weight.narrow(0, 0, 4).zero_();
  problem.gram.narrow(0, 3, 1).zero_();
  problem.gram.narrow(1, 3, 1).zero_();
  problem.factor = natural_factor(problem);
  for (const BlockType* type : block_types())
    if (const auto* grid = dynamic_cast<const GridType*>(type)) {
      const at::Tensor values = decode_rows(*grid, gptq_blocks(*grid, problem.weight, problem.factor).blocks, 256);
      EXPECT_TRUE(values.isfinite().all().item<bool>()) << type->name();
      EXPECT_EQ(values.narrow(0, 0, 4).abs().max().item<float>(), 0) << type->name();
    }
}

TEST(BlockGptq, RefusesAnOrderThatTearsBlocksApart) {
  const GptqProblem problem = correlated_problem(2, 512, 32);
  EXPECT_THROW(gptq_blocks(dynamic_cast<const GridType&>(*find_block_type("Q4_K")), problem.weight, problem.factor),
               InternalError);
}

}  // namespace
}  // namespace layerpress::gguf
