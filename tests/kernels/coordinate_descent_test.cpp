#include "layerpress/kernels/solver/coordinate_descent.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace layerpress::kernels {
namespace {

/// The textbook version, in fp64: all rows at once, one column after the other.
at::Tensor plain_descent(const at::Tensor& weight, const at::Tensor& gram, const at::Tensor& scale,
                         const at::Tensor& zero_point, at::Tensor levels, const ElementType& element,
                         const CoordinateDescent& options) {
  const at::Tensor h = gram.to(at::kDouble) +
                       options.damping * gram.diagonal().mean().to(at::kDouble) * at::eye(gram.size(0), at::kDouble);
  const at::Tensor w = weight.to(at::kDouble);
  for (int sweep = 0; sweep < options.sweeps; ++sweep)
    for (std::int64_t j = 0; j < w.size(1); ++j) {
      const at::Tensor difference = w - (levels - zero_point) * scale;
      const at::Tensor gradient = at::mv(difference, h.select(1, j));
      const at::Tensor own = scale.select(1, j);
      const at::Tensor wanted = levels.select(1, j) + gradient / (h[j][j] * own);
      levels.select(1, j).copy_(
          at::where(own.eq(0), levels.select(1, j), wanted.clamp(element.minimum, element.maximum).round()));
    }
  return levels;
}

double loss_of(const at::Tensor& weight, const at::Tensor& values, const at::Tensor& gram) {
  const at::Tensor difference = weight.to(at::kDouble) - values;
  return (difference * at::mm(difference, gram.to(at::kDouble))).sum().item<double>();
}

struct DescentCase {
  std::int64_t rows, columns, group;
  bool asymmetric;
  int bits;
};

class DescentTest : public testing::TestWithParam<DescentCase> {};

TEST_P(DescentTest, IsTheTextbooks) {
  const auto& [rows, columns, group, asymmetric, bits] = GetParam();
  at::manual_seed(7);
  const at::Tensor inputs = at::randn({3 * columns, columns}) + at::randn({3 * columns, 1});
  const at::Tensor gram = inputs.t().mm(inputs), weight = at::randn({rows, columns}).to(at::kBFloat16);
  const ElementType element = integers(bits);
  at::Tensor scale = at::rand({rows, columns / group}) * 0.3 + 0.1;
  scale[0][0] = 0, scale[rows - 1][0] = -0.2;
  const at::Tensor zero_point = asymmetric ? at::randint(-2, 2, {rows, columns / group}).to(at::kFloat) : at::Tensor();
  const at::Tensor each = scale.repeat_interleave(group, 1).to(at::kDouble);
  const at::Tensor zeros =
      asymmetric ? zero_point.repeat_interleave(group, 1).to(at::kDouble) : at::zeros({1, 1}, at::kDouble);
  const at::Tensor first = at::randint(static_cast<std::int64_t>(element.minimum),
                                       static_cast<std::int64_t>(element.maximum) + 1, {rows, columns});
  const CoordinateDescent options{.sweeps = 3, .damping = 0.2};
  const at::Tensor expected = plain_descent(weight, gram, each, zeros, first.to(at::kDouble), element, options);
  // Rows in two weights, and the lower triangle undefined.
  at::Tensor upper = gram.triu();
  upper += at::full_like(gram, 1e9).tril(-1);
  std::vector<GptqWeight> weights;
  std::vector<at::Tensor> codes;
  for (const auto& [begin, end] : {std::pair(std::int64_t{0}, rows / 3), std::pair(rows / 3, rows)}) {
    weights.push_back(
        {weight.slice(0, begin, end),
         {scale.slice(0, begin, end), asymmetric ? zero_point.slice(0, begin, end) : at::Tensor(), group}});
    codes.push_back(first.slice(0, begin, end).to(at::kChar).contiguous());
  }
  const double loss = descend(weights, upper, element, options, /*loss_damping=*/0, codes);
  const at::Tensor found = at::cat(codes).to(at::kDouble);
  // Values halfway between two codes may go either way in fp32, and then others do.
  EXPECT_GT(found.eq(expected).to(at::kDouble).mean().item<double>(), columns < 1000 ? 0.99 : 0.95);
  const double exact = loss_of(weight, (found - zeros) * each, gram);
  EXPECT_NEAR(loss, exact, 1e-4 * exact);
  EXPECT_LT(loss, 1.01 * loss_of(weight, (expected - zeros) * each, gram));
}

INSTANTIATE_TEST_SUITE_P(Shapes, DescentTest,
                         testing::Values(DescentCase{40, 96, 32, false, 4}, DescentCase{7, 64, 64, true, 3},
                                         DescentCase{33, 200, 50, false, 2}, DescentCase{70, 1152, 128, true, 4},
                                         DescentCase{3, 130, 130, false, 8}));

TEST(Descent, DoesNotDependOnThreads) {
  at::manual_seed(3);
  const at::Tensor inputs = at::randn({4096, 1280}), gram = inputs.t().mm(inputs), weight = at::randn({300, 1280});
  const at::Tensor scale = at::full({300, 10}, 0.4);
  const int threads = at::get_num_threads();
  std::vector<std::vector<at::Tensor>> found;
  for (const int count : {1, 2}) {
    at::set_num_threads(count);
    found.push_back({at::zeros({300, 1280}, at::kChar)});
    descend({{weight, {scale, {}, 128}}}, gram, integers(3), {}, 0.01, found.back());
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(found[0][0], found[1][0]));
}

}  // namespace
}  // namespace layerpress::kernels
