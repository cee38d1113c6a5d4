#include "layerpress/kernels/solver/factorize.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "layerpress/kernels/products/gram.h"
#include "layerpress/kernels/solver/cholesky.h"
#include "layerpress/kernels/solver/factorize_together.h"
#include "tests/base/heap_meter.h"
#include "tests/kernels/relative_difference.h"

namespace layerpress::kernels {
namespace {

at::Tensor gram_of(std::int64_t columns) {
  at::manual_seed(21);
  at::Tensor gram = at::zeros({columns, columns});
  accumulate_gram(gram, at::randn({columns + 8, columns}) + 0.5 * at::randn({columns + 8, 1}));
  return gram;
}

/// HessianFactor as its definition reads, in double precision.
HessianFactor factorize_by_definition(const at::Tensor& gram, const FactorizeOptions& options) {
  HessianFactor factor;
  factor.order = column_order(gram.diagonal(), options);
  at::Tensor hessian =
      symmetric_from_upper(gram.to(at::kDouble)).index_select(0, factor.order).index_select(1, factor.order);
  hessian.diagonal().add_(hessian.diagonal().mean() * options.dampening);
  const at::Tensor upper = at::linalg_cholesky(hessian.flip({0, 1})).flip({0, 1});
  factor.pivots = upper.diagonal().square();
  factor.feedback = (upper / upper.diagonal()).triu(1);
  return factor;
}

TEST(Factorize, AgreesWithTheDefinitionForEverySize) {
  for (const std::int64_t columns : {1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 200, 257, 800})
    for (const bool ordered : {true, false})
      for (const bool wide : {true, false}) {
        const at::Tensor gram = gram_of(columns);
        const FactorizeOptions options{.activation_order = ordered, .double_precision = wide};
        const auto factor = factorize(gram, options);
        ASSERT_TRUE(factor.has_value());
        const HessianFactor expected = factorize_by_definition(gram, options);
        EXPECT_TRUE(at::equal(factor->order, expected.order));
        EXPECT_LT(relative_difference(factor->pivots, expected.pivots), 1e-4) << columns;
        EXPECT_EQ(factor->feedback.scalar_type(), at::kFloat);
        EXPECT_TRUE(at::equal(factor->feedback, factor->feedback.triu(1))) << columns;
        EXPECT_LT((factor->feedback - expected.feedback).norm().item<double>(),
                  1e-4 * (expected.feedback.norm().item<double>() + 1))
            << columns;
      }
}

TEST(Factorize, TogetherAgreesWithTheDefinitionForEverySize) {
  for (const std::int64_t columns : {1, 5, 127, 128, 129, 300, 600})
    for (const bool ordered : {true, false})
      for (const std::size_t count : {1, 3}) {
        std::vector<at::Tensor> grams;
        for (std::size_t m = 0; m < count; ++m) {
          const at::Tensor sizes = at::linspace(1, 1 + static_cast<double>(m), columns);
          grams.push_back(gram_of(columns) * sizes.outer(sizes));
          if (m == 1) grams.back().select(0, columns / 2).zero_(), grams.back().select(1, columns / 2).zero_();
        }
        const FactorizeOptions options{.activation_order = ordered};
        const auto [factors, definite] = factorize_together(grams, options);
        ASSERT_EQ(definite.size(), count);
        for (std::int64_t m = 0; m < static_cast<std::int64_t>(count); ++m) {
          EXPECT_TRUE(definite[static_cast<std::size_t>(m)]);
          at::Tensor touched = grams[static_cast<std::size_t>(m)].clone();
          touched.diagonal().masked_fill_(touched.diagonal().eq(0), 1);  // columns that no token touched
          const HessianFactor expected = factorize_by_definition(touched, options);
          const at::Tensor feedback = factors.feedback[m];
          EXPECT_TRUE(at::equal(feedback, feedback.triu(1)));
          if (m == 1) continue;  // another order: the untouched column
          EXPECT_TRUE(at::equal(factors.order[m], expected.order));
          EXPECT_LT(relative_difference(factors.pivots[m], expected.pivots), 1e-4) << columns;
          EXPECT_LT((feedback - expected.feedback).norm().item<double>(),
                    1e-4 * (expected.feedback.norm().item<double>() + 1))
              << columns << " " << m;
        }
      }
}

TEST(Factorize, TogetherTellsWhichIsNotPositiveDefinite) {
  std::vector<at::Tensor> grams = {gram_of(300), gram_of(300), gram_of(300), gram_of(300)};
  grams[1][17][250] = 1e6;  // an impossible correlation
  grams[2][5][5] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(factorize_together(grams, {}).definite, (std::vector<bool>{true, false, false, true}));
}

TEST(Factorize, GroupsStayTogetherInTheOrderOfTheirLargestColumn) {
  const at::Tensor diagonal = at::tensor({1.0f, 9.0f, 3.0f, 4.0f, 8.0f, 5.0f, 7.0f, 2.0f});
  const auto order = [&](std::int64_t group) {
    const at::Tensor found = column_order(diagonal, {.activation_order = true, .group_columns = group});
    return std::vector<std::int64_t>(found.const_data_ptr<std::int64_t>(), found.const_data_ptr<std::int64_t>() + 8);
  };
  EXPECT_EQ(order(0), (std::vector<std::int64_t>{1, 4, 6, 5, 3, 2, 7, 0}));
  EXPECT_EQ(order(2), (std::vector<std::int64_t>{1, 0, 4, 5, 6, 7, 3, 2}));
  EXPECT_EQ(order(3), (std::vector<std::int64_t>{1, 2, 0, 4, 5, 3, 6, 7}));  // the last group has two
  EXPECT_EQ(order(8), order(0));
  const at::Tensor as_it_is = column_order(diagonal, {.activation_order = false, .group_columns = 2});
  EXPECT_TRUE(at::equal(as_it_is, at::arange(8)));
}

TEST(Factorize, LeavesTheGramMatrixAsItWas) {
  const at::Tensor gram = gram_of(100), before = gram.clone();
  ASSERT_TRUE(factorize(gram, {}).has_value());
  ASSERT_TRUE(factorize(gram, {.double_precision = true}).has_value());
  EXPECT_TRUE(at::equal(gram, before));
}

TEST(Factorize, RefusesWhatIsNotPositiveDefinite) {
  at::Tensor gram = at::eye(8);
  gram[2][5] = 4;  // an impossible correlation
  EXPECT_FALSE(factorize(gram, {.dampening = 0.01}).has_value());
  EXPECT_TRUE(factorize(gram, {.dampening = 100}).has_value());
}

TEST(Factorize, RefusesWhatIsNotPositiveDefiniteInAnyPanel) {
  const at::Tensor gram = gram_of(900);
  for (const std::int64_t column : {1, 100, 500, 899}) {
    at::Tensor broken = gram.clone();
    broken[column][column] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(factorize(broken, {.activation_order = false}).has_value()) << column;
    broken = gram.clone();
    broken[column - 1][column] = 1e6;  // an impossible correlation
    EXPECT_FALSE(factorize(broken, {.activation_order = false}).has_value()) << column;
  }
}

TEST(SolveByFactor, AgreesWithTheInverseForEverySize) {
  for (const std::int64_t columns : {1, 47, 48, 49, 191, 192, 200, 450})
    for (const std::int64_t sides : {1, 48, 70}) {
      at::Tensor factor = gram_of(columns);
      factor.diagonal().add_(factor.diagonal().mean());
      const at::Tensor matrix = symmetric_from_upper(factor).to(at::kDouble);
      ASSERT_TRUE(factorize_upper(factor));
      mirror_upper(factor);
      const at::Tensor b = at::randn({columns, sides});
      at::Tensor x = b.clone();
      solve_by_factor(x, factor);
      EXPECT_LT(relative_difference(x, at::linalg_solve(matrix, b.to(at::kDouble))), 1e-5) << columns << " " << sides;
      at::Tensor last = b.slice(1, sides - 1).contiguous();
      solve_by_factor(last, factor);
      EXPECT_TRUE(last.equal(x.slice(1, sides - 1))) << columns << " " << sides;  // whatever is beside it
    }
}

TEST(Factorize, DoesNotDependOnThreads) {
  const at::Tensor gram = gram_of(900);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const auto alone = factorize(gram, {});
  at::set_num_threads(4);
  const auto shared = factorize(gram, {});
  at::set_num_threads(threads);
  ASSERT_TRUE(alone.has_value() && shared.has_value());
  EXPECT_TRUE(at::equal(alone->feedback, shared->feedback));
  EXPECT_TRUE(at::equal(alone->pivots, shared->pivots));
}

TEST(Factorize, DoublePrecisionSurvivesWhatSinglePrecisionDoesNot) {
  at::manual_seed(5);
  const at::Tensor few = at::randn({6, 64});
  at::Tensor gram = at::zeros({64, 64});
  accumulate_gram(gram, few);  // rank 6: only the dampening makes it definite
  EXPECT_FALSE(factorize(gram, {.dampening = 1e-9}).has_value());
  EXPECT_TRUE(factorize(gram, {.dampening = 1e-5, .double_precision = true}).has_value());
}

TEST(Factorize, HoldsOneMatrixBesideTheGramMatrix) {
  LAYERPRESS_SKIP_WITHOUT_HEAP_METER();
  const at::Tensor gram = gram_of(1600);
  for (const bool wide : {false, true}) {
    factorize(gram, {.double_precision = wide});  // buffers that the libraries keep
    const std::uint64_t before = heap_meter::held_bytes();
    heap_meter::restart_peak();
    ASSERT_TRUE(factorize(gram, {.double_precision = wide}).has_value());
    const double matrix = 4.0 * 1600 * 1600 * (wide ? 2 : 1);
    const auto held = static_cast<double>(heap_meter::peak_bytes() - before);
    EXPECT_LT(held, 1.2 * matrix) << wide;
  }
}

}  // namespace
}  // namespace layerpress::kernels
