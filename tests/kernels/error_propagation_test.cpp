#include "layerpress/kernels/solver/error_propagation.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <limits>

#include "layerpress/kernels/layers/output_cross.h"
#include "layerpress/kernels/products/gram.h"

namespace layerpress::kernels {
namespace {

/// Adds damping to the diagonal; columns that no token touched get a unit diagonal.
void damped(const at::Tensor& matrix, double damping) {
  at::Tensor diagonal = matrix.diagonal();
  const at::Tensor added = diagonal.mean() * damping;
  diagonal.masked_fill_(diagonal.eq(0), 1);
  diagonal.add_(added);
}

/// The moved weights from the definitions, in double precision.
at::Tensor plain_moved_for_outputs(const at::Tensor& weight, const at::Tensor& gram, const at::Tensor& output_cross,
                                   const ErrorPropagation& options) {
  const at::Tensor plain = symmetric_from_upper(gram).to(at::kDouble), matrix = plain.clone();
  damped(matrix, options.damping);
  const at::Tensor wide = weight.to(at::kDouble);
  return wide + (output_cross.to(at::kDouble) - options.strength * wide.mm(plain)).mm(at::linalg_inv(matrix));
}

at::Tensor plain_moved(const at::Tensor& weight, const at::Tensor& gram, const at::Tensor& cross,
                       const ErrorPropagation& options) {
  const at::Tensor matrix = symmetric_from_upper(gram).to(at::kDouble);
  damped(matrix, options.damping);
  const at::Tensor wide = weight.to(at::kDouble);
  return wide + options.strength * wide.mm(cross.to(at::kDouble)).mm(at::linalg_inv(matrix));
}

/// Inputs of a compressed and of an original model, and what is summed over them.
struct Inputs {
  at::Tensor compressed, original, gram, cross;
};

Inputs inputs_of(const at::Tensor& compressed, const at::Tensor& original) {
  const std::int64_t columns = compressed.size(1);
  Inputs inputs{compressed, original, at::zeros({columns, columns}), at::zeros({columns, columns})};
  accumulate_gram(inputs.gram, compressed);
  accumulate_cross_gram(inputs.cross, original, compressed);
  return inputs;
}

/// Correlated columns of unlike sizes.
Inputs random_inputs(std::int64_t tokens, std::int64_t columns) {
  const at::Tensor mixing = at::randn({columns, columns}) / std::sqrt(static_cast<double>(columns)) + at::eye(columns);
  const at::Tensor original = at::randn({tokens, columns}).mm(mixing) * (0.1 + 2 * at::rand({columns}));
  return inputs_of(original + 0.1 * original.roll({1}, {1}) + 0.05 * at::randn({tokens, columns}), original);
}

at::Tensor moved(const at::Tensor& weight, const Inputs& inputs, std::int64_t group_rows,
                 const ErrorPropagation& options) {
  const auto mover = WeightMover::make(inputs.gram, inputs.cross, group_rows, options);
  EXPECT_TRUE(mover.has_value());
  return mover ? mover->moved(weight) : at::zeros_like(weight);
}

/// Error of the change, relative to the change.
double change_error(const at::Tensor& result, const at::Tensor& weight, const Inputs& inputs,
                    const ErrorPropagation& options) {
  const at::Tensor expected = plain_moved(weight, inputs.gram, inputs.cross, options);
  const at::Tensor change = expected - weight.to(at::kDouble);
  return ((result.to(at::kDouble) - expected).norm() / change.norm()).item<double>();
}

struct MoveCase {
  std::int64_t tokens, columns, rows;
  double damping, most;  ///< largest relative error of the change
};

class WeightMoverTest : public ::testing::TestWithParam<MoveCase> {};

TEST_P(WeightMoverTest, MatchesDoublePrecisionInBothOrders) {
  at::manual_seed(11);
  const auto [tokens, columns, rows, damping, most] = GetParam();
  const Inputs inputs = random_inputs(tokens, columns);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor weight = at::randn({rows, columns}).to(dtype);
    for (const std::int64_t group_rows : {columns - 1, columns})
      for (const double strength : {0.5, 1.0}) {
        const ErrorPropagation options{strength, damping};
        EXPECT_LT(change_error(moved(weight, inputs, group_rows, options), weight, inputs, options), most)
            << group_rows << " rows, strength " << strength << ", " << at::toString(dtype);
      }
  }
}

// With more tokens than columns, with fewer (only the damping makes the matrix regular), and around the blocks of rows.
INSTANTIATE_TEST_SUITE_P(Shapes, WeightMoverTest,
                         ::testing::Values(MoveCase{2000, 200, 7, 0.1, 1e-4}, MoveCase{2000, 200, 288, 0.01, 1e-4},
                                           MoveCase{50, 200, 289, 0.1, 1e-4}, MoveCase{50, 200, 30, 0.001, 1e-2},
                                           MoveCase{600, 64, 700, 0.1, 1e-4}));

constexpr double kStrength = 0.6, kResidual = 0.5;

/// Of what the original model writes, and of a stream's own difference.
at::Tensor output_cross_of(const at::Tensor& weight, const Inputs& inputs) {
  const at::Tensor stream = at::randn({inputs.compressed.size(0), weight.size(0)});
  at::Tensor sums = at::zeros({weight.size(0), weight.size(1)});
  const at::Tensor other = stream + inputs.compressed.mm(at::randn({weight.size(1), weight.size(0)})) * 0.1;
  accumulate_output_cross(sums, {inputs.compressed, stream, other, inputs.original.mm(weight.t())}, {},
                          {kStrength, kResidual});
  return sums;
}

std::optional<WeightMover> mover_for_outputs(const Inputs& inputs, const at::Tensor& sums, double damping) {
  return WeightMover::make_for_outputs(inputs.gram, sums, {kStrength, damping, kResidual});
}

TEST_P(WeightMoverTest, MatchesDoublePrecisionForOutputs) {
  at::manual_seed(18);
  const auto [tokens, columns, rows, damping, most] = GetParam();
  const Inputs inputs = random_inputs(tokens, columns);
  const at::Tensor weight = at::randn({rows, columns}), sums = output_cross_of(weight, inputs);
  const auto mover = mover_for_outputs(inputs, sums, damping);
  ASSERT_TRUE(mover.has_value());
  const at::Tensor expected = plain_moved_for_outputs(weight, inputs.gram, sums, {kStrength, damping});
  const at::Tensor error = mover->moved(weight).to(at::kDouble) - expected;
  EXPECT_LT((error.norm() / (expected - weight.to(at::kDouble)).norm()).item<double>(), most);
}

TEST(WeightMover, ForOutputsWithoutStreamIsTheSameMove) {
  at::manual_seed(19);
  const Inputs inputs = random_inputs(2000, 120);
  const at::Tensor weight = at::randn({50, 120}), stream = at::zeros({2000, 50});
  at::Tensor sums = at::zeros({50, 120});
  const at::Tensor bias = at::randn({50}), output = inputs.original.mm(weight.t()) + bias;
  accumulate_output_cross(sums, {inputs.compressed, stream, stream, output}, bias, {0.5, 0.3});
  const at::Tensor other = WeightMover::make_for_outputs(inputs.gram, sums, {0.5, 0.1})->moved(weight);
  EXPECT_LT(change_error(other, weight, inputs, {0.5, 0.1}), 1e-4);
}

TEST(WeightMover, TakesOutputsTowardsTheOriginals) {
  at::manual_seed(12);
  const Inputs inputs = random_inputs(3000, 96);
  const at::Tensor weight = at::randn({40, 96}), wanted = inputs.original.mm(weight.t());
  const auto error = [&](const at::Tensor& w) { return (inputs.compressed.mm(w.t()) - wanted).norm().item<double>(); };
  // At full strength, least squares: the residual is orthogonal to the inputs.
  const at::Tensor whole = moved(weight, inputs, 40, {1.0, 0.0}), half = moved(weight, inputs, 40, {0.5, 0.0});
  const at::Tensor residual = (wanted - inputs.compressed.mm(whole.t())).to(at::kDouble);
  EXPECT_LT((residual.t().mm(inputs.compressed.to(at::kDouble)).norm() /
             (residual.norm() * inputs.compressed.norm().to(at::kDouble)))
                .item<double>(),
            1e-3);
  EXPECT_LT(error(whole), 0.8 * error(weight));
  EXPECT_LT(error(half), error(weight));
  EXPECT_LT(error(whole), error(half));
}

TEST(WeightMover, WithoutStrengthOrDifferenceGivesTheWeightsBack) {
  at::manual_seed(13);
  const Inputs inputs = random_inputs(500, 80), equal = inputs_of(inputs.compressed, inputs.compressed.clone());
  const at::Tensor weight = at::randn({300, 80}).to(at::kBFloat16);
  for (const std::int64_t group_rows : {10, 300}) {
    EXPECT_TRUE(at::equal(moved(weight, inputs, group_rows, {0.0, 0.1}), weight.to(at::kFloat)));
    EXPECT_TRUE(at::equal(moved(weight, equal, group_rows, {0.5, 0.1}), weight.to(at::kFloat)));
  }
}

TEST(WeightMover, DoesNotMoveColumnsThatNoTokenTouched) {
  at::manual_seed(14);
  at::Tensor original = at::randn({400, 64}), compressed = original + 0.1 * at::randn({400, 64});
  compressed.slice(1, 5, 9).zero_();  // the original has something there
  const Inputs inputs = inputs_of(compressed, original);
  const at::Tensor weight = at::randn({20, 64});
  for (const std::int64_t group_rows : {20, 100}) {
    const at::Tensor result = moved(weight, inputs, group_rows, {0.5, 0.1});
    EXPECT_TRUE(at::equal(result.slice(1, 5, 9), weight.slice(1, 5, 9)));
    EXPECT_FALSE(at::equal(result.slice(1, 9), weight.slice(1, 9)));
    EXPECT_LT(change_error(result, weight, inputs, {0.5, 0.1}), 1e-4);
  }
}

TEST(WeightMover, DoesNotDependOnTheDivisionOfRows) {
  at::manual_seed(15);
  const Inputs inputs = random_inputs(1000, 320);
  const at::Tensor weight = at::randn({611, 320}).to(at::kBFloat16);
  for (const std::int64_t group_rows : {200, 611}) {
    const at::Tensor whole = moved(weight, inputs, group_rows, {0.5, 0.1});
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{0, 1, 611}, {0, 204, 408, 611}, {0, 17, 18, 350, 610, 611}}) {
      std::vector<at::Tensor> parts;
      for (std::size_t i = 1; i < cuts.size(); ++i)
        parts.push_back(moved(weight.slice(0, cuts[i - 1], cuts[i]), inputs, group_rows, {0.5, 0.1}));
      EXPECT_TRUE(at::equal(at::cat(parts), whole)) << group_rows << " rows in " << parts.size() << " parts";
    }
  }
}

TEST(WeightMover, ForOutputsTakesTheRowsOfAPart) {
  at::manual_seed(20);
  const Inputs inputs = random_inputs(1000, 320);
  const at::Tensor weight = at::randn({611, 320}).to(at::kBFloat16);
  const at::Tensor sums = output_cross_of(weight.to(at::kFloat), inputs);
  const auto mover = mover_for_outputs(inputs, sums, 0.1);
  const at::Tensor whole = mover->moved(weight);
  const std::vector<std::int64_t> cuts = {0, 17, 18, 350, 610, 611};
  std::vector<at::Tensor> parts;
  for (std::size_t i = 1; i < cuts.size(); ++i)
    parts.push_back(mover->moved(weight.slice(0, cuts[i - 1], cuts[i]), cuts[i - 1]));
  EXPECT_TRUE(at::equal(at::cat(parts), whole));
  EXPECT_FALSE(at::equal(whole, weight.to(at::kFloat)));
}

TEST(WeightMover, ForOutputsDoesNotMoveColumnsThatNoTokenTouched) {
  at::manual_seed(21);
  at::Tensor original = at::randn({400, 64}), compressed = original + 0.1 * at::randn({400, 64});
  compressed.slice(1, 5, 9).zero_();  // the original has something there
  const Inputs inputs = inputs_of(compressed, original);
  const at::Tensor weight = at::randn({20, 64});
  const at::Tensor result = mover_for_outputs(inputs, output_cross_of(weight, inputs), 0.1)->moved(weight);
  EXPECT_TRUE(at::allclose(result.slice(1, 5, 9), weight.slice(1, 5, 9), 1e-6, 1e-6));
  EXPECT_FALSE(at::allclose(result.slice(1, 9), weight.slice(1, 9), 1e-2, 1e-2));
}

TEST(WeightMover, RefusesWhatRoundingDecides) {
  at::manual_seed(16);
  const Inputs few_tokens = random_inputs(30, 100);
  for (const std::int64_t group_rows : {50, 200}) {
    EXPECT_FALSE(WeightMover::make(few_tokens.gram, few_tokens.cross, group_rows, {0.5, 0.0}).has_value());
    EXPECT_TRUE(WeightMover::make(few_tokens.gram, few_tokens.cross, group_rows, {0.5, 0.01}).has_value());
  }
  at::Tensor indefinite = at::eye(100);
  indefinite[1][2] = 5;
  EXPECT_FALSE(WeightMover::make(indefinite, few_tokens.cross, 50, {0.5, 0.1}).has_value());
  for (const double bad : {INFINITY, NAN}) {
    at::Tensor gram = at::eye(100), cross = at::zeros({100, 100});
    gram[3][3] = bad;
    cross[4][5] = bad;
    EXPECT_FALSE(WeightMover::make(gram, few_tokens.cross, 50, {0.5, 0.1}).has_value()) << bad;
    EXPECT_FALSE(WeightMover::make(at::eye(100), cross, 50, {0.5, 0.1}).has_value()) << bad;
    EXPECT_FALSE(WeightMover::make_for_outputs(gram, few_tokens.cross, {0.5, 0.1}).has_value()) << bad;
    EXPECT_FALSE(WeightMover::make_for_outputs(at::eye(100), cross, {0.5, 0.1}).has_value()) << bad;
  }
}

TEST(WeightMover, LeavesRowsThatWouldOverflow) {
  at::manual_seed(17);
  const Inputs inputs = inputs_of(at::ones({4, 8}), at::full({4, 8}, 3.0));
  at::Tensor weight = at::randn({3, 8});
  weight[1].fill_(std::numeric_limits<float>::max() / 2);
  for (const std::int64_t group_rows : {3, 30}) {
    const at::Tensor result = moved(weight, inputs, group_rows, {2.0, 0.1});
    EXPECT_TRUE(at::equal(result[1], weight[1]));
    EXPECT_FALSE(at::equal(result[0], weight[0]));
    EXPECT_TRUE(result.isfinite().all().item<bool>());
  }
}

}  // namespace
}  // namespace layerpress::kernels
