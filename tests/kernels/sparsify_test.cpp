#include "layerpress/kernels/solver/sparsify.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/kernels/gptq_problems.h"
#include "tests/kernels/on_device.h"

namespace layerpress::kernels {
namespace {

/// The upper Cholesky factor of the damped matrix's inverse.
at::Tensor inverse_factor_of(const at::Tensor& gram, double dampening) {
  at::Tensor hessian = symmetric_from_upper(gram.to(at::kDouble));
  at::Tensor diagonal = hessian.diagonal();
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(diagonal.mean() * dampening);
  return at::linalg_cholesky(at::inverse(hessian), /*upper=*/true);
}

/// Adds the least scores of each row's group to `mask`, up to its number of zeros.
void prune_group(const at::Tensor& scores, const SparsePattern& pattern, at::Tensor mask) {
  for (std::int64_t row = 0; row < scores.size(0); ++row)
    while (mask[row].sum().item<std::int64_t>() < pattern.pruned)
      mask[row][scores[row].masked_fill(mask[row], INFINITY).argmin()] = true;
}

/// The textbook form with the inverse of the damped Gram matrix (upper triangle), in double precision, one column at a time.
SparseWeight plain_sparsify(const at::Tensor& weight, const at::Tensor& gram, double dampening,
                            const SparsifyOptions& options) {
  const auto& [pattern, block_size, keeps_zeros] = options;
  const at::Tensor upper = inverse_factor_of(gram, dampening);
  at::Tensor w = weight.to(at::kDouble).clone();
  w.masked_fill_(gram.diagonal().eq(0), 0);
  const at::Tensor zeros = keeps_zeros ? w.eq(0) : at::zeros_like(w, at::kBool);
  double loss = 0;
  for (std::int64_t begin = 0, end = 0; begin < w.size(1); begin = end) {
    end = std::min(begin + block_size, w.size(1));
    const auto scores = [&](std::int64_t first, std::int64_t last) {
      return (w.slice(1, first, last) / upper.diagonal().slice(0, first, last)).square();
    };
    at::Tensor mask = zeros.slice(1, begin, end).clone();
    if (pattern.group == 0) {
      const auto place = static_cast<std::int64_t>(static_cast<double>(mask.numel()) * pattern.sparsity);
      const at::Tensor all = scores(begin, end).masked_fill(mask, 0);
      if (mask.sum().item<std::int64_t>() < place || !keeps_zeros)
        mask = all.le(std::get<0>(all.flatten().sort())[place]);
    }
    for (std::int64_t j = begin; j < end; ++j) {
      if (pattern.group > 0 && (j - begin) % pattern.group == 0)
        prune_group(scores(j, j + pattern.group), pattern, mask.slice(1, j - begin, j - begin + pattern.group));
      const at::Tensor error = w.select(1, j) * mask.select(1, j - begin) / upper[j][j];
      loss += error.square().sum().item<double>();
      w.slice(1, j).sub_(error.outer(upper[j].slice(0, j)));
      w.select(1, j).masked_fill_(mask.select(1, j - begin), 0);
    }
  }
  return {w, loss};
}

struct SparsifyCase {
  const char* name;
  SparsifyOptions options;
};

void PrintTo(const SparsifyCase& c, std::ostream* out) { *out << c.name; }

const std::vector<SparsifyCase> kSparsifyCases = {{"Half", {{0.5}, 128}},
                                                  {"Most", {{0.7}, 32}},
                                                  {"OneOfABlock", {{0}, 64}},
                                                  {"TwoOfFour", {{0, 2, 4}, 128}},
                                                  {"ThreeOfEight", {{0, 3, 8}, 40}},
                                                  {"OneBlock", {{0.3}, 512}},
                                                  {"Extended", {{0.6}, 64, true}},
                                                  {"ExtendedGroups", {{0, 2, 4}, 64, true}}};

at::Tensor none_untouched(const Problem& problem) { return problem.gram.diagonal().eq(0); }

class SparsifyTest : public ::testing::TestWithParam<SparsifyCase> {
 protected:
  SparsifyTest() : problem_(make_problem(48, 160, 160, true, 7.5)) {
    if (GetParam().options.keeps_zeros) problem_.weight.masked_fill_(at::rand({48, 160}).lt(0.2), 0);
    factor_ = factorize(problem_.gram, {.dampening = 0.01, .activation_order = false}).value();
  }

  /// Whether the weight has the zeros that are asked for.
  void expect_pattern(const at::Tensor& weight) const {
    const SparsifyOptions& options = GetParam().options;
    const at::Tensor zeros = weight.eq(0);
    if (options.pattern.group > 0 && !options.keeps_zeros) {
      EXPECT_TRUE(zeros.view({-1, options.pattern.group}).sum(1).eq(options.pattern.pruned).all().item<bool>());
    } else if (options.pattern.group > 0) {
      EXPECT_TRUE(zeros.view({-1, options.pattern.group}).sum(1).ge(options.pattern.pruned).all().item<bool>());
    } else {
      for (std::int64_t begin = 0; begin < weight.size(1); begin += options.block_size) {
        const at::Tensor block = zeros.slice(1, begin, begin + options.block_size);
        const auto least = static_cast<std::int64_t>(static_cast<double>(block.numel()) * options.pattern.sparsity);
        EXPECT_NEAR(block.sum().item<double>(), static_cast<double>(least), 1.0);
      }
    }
    if (options.keeps_zeros) {
      EXPECT_TRUE(zeros.logical_or(problem_.weight.ne(0)).all().item<bool>());
    }
  }

  Problem problem_;
  HessianFactor factor_;
};

TEST_P(SparsifyTest, AgreesWithTheTextbookInDoublePrecision) {
  const SparsifyOptions& options = GetParam().options;
  const SparseWeight result = sparsify(problem_.weight, factor_, none_untouched(problem_), options);
  const SparseWeight reference = plain_sparsify(problem_.weight, problem_.gram, 0.01, options);
  expect_pattern(result.weight);
  EXPECT_GT(equal_share(result.weight.eq(0), reference.weight.eq(0)), 0.999);
  EXPECT_NEAR(result.loss / reference.loss, 1.0, 1e-3);
  EXPECT_LT((result.weight - reference.weight).norm().item<double>(), 0.02 * reference.weight.norm().item<double>());
  // The loss is that of the outputs, and compensation makes it smaller than the same zeros without it.
  at::Tensor hessian = symmetric_from_upper(problem_.gram).to(at::kDouble);
  hessian.diagonal().add_(0.01 * hessian.diagonal().mean());
  const auto loss_of = [&](const at::Tensor& weight) {
    const at::Tensor difference = problem_.weight.to(at::kDouble) - weight;
    return (difference.mm(hessian) * difference).sum().item<double>();
  };
  EXPECT_NEAR(loss_of(result.weight) / result.loss, 1.0, 1e-3);
  EXPECT_LT(result.loss, 0.9 * loss_of(problem_.weight.masked_fill(result.weight.eq(0), 0)));
}

INSTANTIATE_TEST_SUITE_P(Cases, SparsifyTest, ::testing::ValuesIn(kSparsifyCases),
                         [](const auto& info) { return info.param.name; });

TEST(Sparsify, KeepsTheDtypeAndZeroesUntouchedColumns) {
  Problem problem = make_problem(16, 64, 64, true, 7.5);
  problem.gram.select(0, 5).zero_();
  problem.gram.select(1, 5).zero_();
  const HessianFactor factor = factorize(problem.gram, {.activation_order = false}).value();
  const SparseWeight result = sparsify(problem.weight.to(at::kBFloat16), factor, none_untouched(problem), {{0.25}, 32});
  EXPECT_EQ(result.weight.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(result.weight.select(1, 5).eq(0).all().item<bool>());
  EXPECT_FALSE(result.weight.select(1, 6).eq(0).all().item<bool>());
}

TEST(Sparsify, ThreadsDoNotMatter) {
  const int threads = at::get_num_threads();
  const Problem problem = make_problem(200, 128, 64, false, 7.5);
  const HessianFactor factor = factorize(problem.gram, {.activation_order = false}).value();
  const auto solved = [&](int count) {
    at::set_num_threads(count);
    const SparseWeight result = sparsify(problem.weight, factor, none_untouched(problem), {{0, 2, 4}});
    at::set_num_threads(threads);
    return result;
  };
  const SparseWeight alone = solved(1), shared = solved(3);
  EXPECT_GT(equal_share(alone.weight.eq(0), shared.weight.eq(0)), 0.999);
  EXPECT_NEAR(alone.loss / shared.loss, 1.0, 1e-6);
}

TEST(LeastScores, OfEachRowOrGroup) {
  const at::Tensor scores = at::tensor({3.f, 1.f, 1.f, 1.f, 0.f, 9.f, 8.f, 7.f}).view({1, 8});
  const auto places = [&](const SparsePattern& pattern) {
    return least_scores(scores, pattern).to(at::kInt).view({8});
  };
  EXPECT_TRUE(
      at::equal(places({0.4}), at::tensor({0, 1, 1, 0, 1, 0, 0, 0}, at::kInt)));  // 3 of 8, the first of equal ones
  EXPECT_TRUE(at::equal(places({0}), at::zeros({8}, at::kInt)));
  EXPECT_TRUE(at::equal(places({0, 2, 4}), at::tensor({0, 1, 1, 0, 1, 0, 0, 1}, at::kInt)));
}

class OnDeviceSparsify : public OnDevice {};

TEST_F(OnDeviceSparsify, AgreesWithTheCpu) {
  const Problem problem = make_problem(48, 160, 160, true, 7.5);
  const HessianFactor factor = factorize(problem.gram, {.activation_order = false}).value();
  const HessianFactor there{factor.order.to(kGpu), factor.feedback.to(kGpu), factor.pivots.to(kGpu)};
  for (const SparsifyCase& c : kSparsifyCases) {
    const SparseWeight here = sparsify(problem.weight, factor, none_untouched(problem), c.options);
    const SparseWeight result = sparsify(problem.weight.to(kGpu), there, none_untouched(problem).to(kGpu), c.options);
    EXPECT_GT(equal_share(result.weight.cpu().eq(0), here.weight.eq(0)), 0.999) << c.name;
    EXPECT_NEAR(result.loss / here.loss, 1.0, 1e-3) << c.name;
  }
  const at::Tensor scores = at::rand({40, 64});
  for (const SparsePattern& pattern : {SparsePattern{0.4}, SparsePattern{0, 2, 4}})
    EXPECT_TRUE(at::equal(least_scores(scores.to(kGpu), pattern).cpu(), least_scores(scores, pattern)));
}

}  // namespace
}  // namespace layerpress::kernels
