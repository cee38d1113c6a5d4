#include "layerpress/kernels/products/hadamard.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

namespace layerpress::kernels {
namespace {

using Seeded = Hadamard::Seeded;

class HadamardTest : public ::testing::TestWithParam<std::int64_t> {};

TEST_P(HadamardTest, IsOrthogonalWithEqualEntries) {
  for (const Seeded seeded : {Seeded::kNot, Seeded::kPermuted, Seeded::kSigned}) {
    const auto rotation = Hadamard::of_size(GetParam(), seeded);
    ASSERT_NE(rotation, nullptr);
    const at::Tensor matrix = rotation->matrix();
    EXPECT_TRUE(at::allclose(matrix.matmul(matrix.t()), at::eye(GetParam(), at::kDouble), 0, 1e-12));
    EXPECT_TRUE(at::allclose(matrix.abs(), at::full_like(matrix, 1 / std::sqrt(static_cast<double>(GetParam())))));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, HadamardTest,
                         ::testing::Values(1, 2, 4, 16, 12, 20, 24, 28, 36, 60, 80, 84, 104, 108, 140, 180, 288));

TEST(Hadamard, OfPowersOfTwoIsSylvesters) {
  const double h = 0.5;
  const at::Tensor wanted =
      at::tensor({h, h, h, h, h, -h, h, -h, h, h, -h, -h, h, -h, -h, h}, at::kDouble).view({4, 4});
  EXPECT_TRUE(at::equal(Hadamard::of_size(4)->matrix(), wanted));
  EXPECT_EQ(Hadamard::of_size(256)->base(), 1);
  EXPECT_EQ(Hadamard::of_size(576)->base(), 36);
}

TEST(Hadamard, IsUnknownOfOtherSizes) {
  for (const std::int64_t size : {0, 3, 6, 7, 10, 52, 172}) EXPECT_EQ(Hadamard::of_size(size), nullptr) << size;
}

TEST(Hadamard, OfASeedIsAnother) {
  const at::Tensor plain = Hadamard::of_size(24)->matrix();
  for (const Seeded seeded : {Seeded::kPermuted, Seeded::kSigned}) {
    EXPECT_FALSE(at::equal(Hadamard::of_size(24, seeded)->matrix(), plain));
    EXPECT_TRUE(at::equal(Hadamard::of_size(24, seeded)->matrix(), Hadamard::of_size(24, seeded)->matrix()));
  }
}

/// A matrix with the rotation's in each block of a run.
at::Tensor diagonal_of(std::int64_t size, const std::shared_ptr<const Hadamard>& rotation,
                       const std::vector<MatrixRotation::Run>& runs) {
  at::Tensor whole = at::eye(size, at::kDouble);
  for (const MatrixRotation::Run& run : runs)
    for (std::int64_t first = run.first; first < run.first + run.count; first += rotation->size())
      whole.narrow(0, first, rotation->size()).narrow(1, first, rotation->size()).copy_(rotation->matrix());
  return whole;
}

at::Tensor plain_rotated(const at::Tensor& weight, const MatrixRotation& rotation) {
  at::Tensor wide = weight.to(at::kDouble);
  if (rotation.factors.defined()) wide = wide * rotation.factors;
  if (rotation.of_columns) wide = wide.matmul(diagonal_of(weight.size(1), rotation.of_columns, {{0, weight.size(1)}}));
  if (rotation.of_rows) wide = diagonal_of(weight.size(0), rotation.of_rows, rotation.rows).t().matmul(wide);
  return wide;
}

TEST(RotatedWeight, EqualsProductsOfMatrices) {
  at::manual_seed(3);
  const at::Tensor factors = at::rand({96}, at::kDouble) + 0.5;
  const std::vector<MatrixRotation> rotations = {
      {.of_columns = Hadamard::of_size(96)},
      {.of_columns = Hadamard::of_size(96, Seeded::kSigned), .factors = factors},
      {.of_rows = Hadamard::of_size(48, Seeded::kPermuted), .rows = {{0, 96}}},
      {.of_rows = Hadamard::of_size(96), .rows = {{0, 96}}, .of_columns = Hadamard::of_size(16)},
      {.of_rows = Hadamard::of_size(16, Seeded::kSigned),
       .rows = {{8, 16}, {40, 32}},
       .of_columns = Hadamard::of_size(96),
       .factors = factors},
      {.of_rows = Hadamard::of_size(96), .rows = {{0, 96}}, .of_columns = Hadamard::of_size(96)}};
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const at::Tensor weight = at::randn({96, 96}).to(dtype);
    for (const MatrixRotation& rotation : rotations) {
      const at::Tensor found = rotated(weight, rotation), wanted = plain_rotated(weight, rotation);
      EXPECT_EQ(found.scalar_type(), dtype);
      const double rounding = dtype == at::kFloat ? 1e-7 : dtype == at::kHalf ? 5e-4 : 4e-3;
      EXPECT_TRUE(at::allclose(found.to(at::kDouble), wanted, rounding, rounding));
      EXPECT_FALSE(at::allclose(found.to(at::kDouble), weight.to(at::kDouble), 0.1, 0.1));
    }
  }
}

TEST(RotatedWeight, OfABias) {
  const at::Tensor bias = at::randn({24});
  const MatrixRotation rotation{.of_rows = Hadamard::of_size(8), .rows = {{16, 8}}};
  const at::Tensor found = rotated(bias, rotation);
  EXPECT_TRUE(at::equal(found.narrow(0, 0, 16), bias.narrow(0, 0, 16)));
  EXPECT_TRUE(at::allclose(found.narrow(0, 16, 8).to(at::kDouble),
                           bias.narrow(0, 16, 8).to(at::kDouble).matmul(rotation.of_rows->matrix())));
}

/// Larger than a tile, in both directions.
TEST(RotatedWeight, DoesNotDependOnThreads) {
  const at::Tensor weight = at::randn({320, 384});
  const MatrixRotation rotation{
      .of_rows = Hadamard::of_size(320), .rows = {{0, 320}}, .of_columns = Hadamard::of_size(64)};
  const int threads = at::get_num_threads();
  const at::Tensor found = rotated(weight, rotation);
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), plain_rotated(weight, rotation), 1e-6, 1e-6));
  at::set_num_threads(1);
  EXPECT_TRUE(at::equal(rotated(weight, rotation), found));
  at::set_num_threads(threads);
}

}  // namespace
}  // namespace layerpress::kernels
