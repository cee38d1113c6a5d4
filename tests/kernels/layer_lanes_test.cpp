// The lines of the device's kernels for pieces of a layer, on the host, against ATen's.
#include "layerpress/kernels/cuda/layer_lanes.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/kernels/layers/transformer.h"
#include "tests/kernels/host_warp.h"

namespace layerpress::kernels {
namespace {

template <typename T>
constexpr at::ScalarType kDtype = std::is_same_v<T, float> ? at::kFloat : at::kBFloat16;

template <typename T>
T* values(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.mutable_data_ptr());
}

/// Sums are added in another order, so a few values are rounded the other way.
void expect_same(const at::Tensor& found, const at::Tensor& expected) {
  const at::Tensor own = found.to(at::kFloat), other = expected.to(at::kFloat);
  EXPECT_GT(found.eq(expected).to(at::kDouble).mean().item<double>(), found.scalar_type() == at::kFloat ? 0.3 : 0.99);
  EXPECT_LE((own - other).abs().max().item<double>(), 0.01 * other.abs().max().item<double>());
}

template <typename T>
class LayerLanes : public ::testing::Test {};
using Numbers = ::testing::Types<cuda::Bf16, float>;
TYPED_TEST_SUITE(LayerLanes, Numbers);

template <std::int32_t kCount, typename T, typename W>
at::Tensor norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, const NormWeight& how) {
  at::Tensor y = at::empty_like(x);
  cuda::NormTask task;
  task.size = weight.numel();
  task.epsilon = static_cast<float>(epsilon);
  task.offset = static_cast<float>(how.offset);
  task.rounded_once = how.rounded_once;
  test::HostWarp<cuda::NormLane> warp;
  for (std::int64_t row = 0; row < x.numel() / task.size; ++row)
    cuda::norm_row<kCount>(warp, task, values<T>(x) + row * task.size, values<W>(weight),
                           values<T>(y) + row * task.size);
  return y;
}

TYPED_TEST(LayerLanes, Norms) {
  using T = TypeParam;
  at::manual_seed(2);
  const at::Tensor x = at::randn({9, 200}).to(kDtype<T>), weight = at::randn({200}).to(kDtype<T>);
  expect_same(norm<8, T, T>(x, weight, 1e-5, {}), plain_rms_norm(x, weight, 1e-5));
  expect_same(norm<1, T, T>(x, weight, 1e-5, {}), plain_rms_norm(x, weight, 1e-5));
  const NormWeight once{1.0, true};
  expect_same(norm<8, T, T>(x, weight, 1e-6, once), plain_rms_norm(x, weight, 1e-6, once));
  const at::Tensor wide = weight.to(at::kFloat);
  expect_same(norm<8, T, float>(x, wide, 1e-6, once), plain_rms_norm(x, wide, 1e-6, once));
}

TYPED_TEST(LayerLanes, GatedActivation) {
  using T = TypeParam;
  at::manual_seed(3);
  const at::Tensor a = (10 * at::randn({3, 500})).to(kDtype<T>), b = at::randn({3, 500}).to(kDtype<T>);
  at::Tensor y = at::empty_like(a);
  for (std::int64_t i = 0; i < a.numel(); ++i) values<T>(y)[i] = cuda::gated(values<T>(a)[i], values<T>(b)[i]);
  expect_same(y, plain_gated_activation("silu", a, b));
}

TYPED_TEST(LayerLanes, Rotary) {
  using T = TypeParam;
  at::manual_seed(4);
  const at::Tensor x = at::randn({7, 3 * 40}).to(kDtype<T>), angles = 3 * at::randn({11, 12});
  const at::Tensor cosine = angles.cos(), sine = angles.sin(), places = at::randint(11, {7}, at::kLong);
  for (const bool interleaved : {false, true})
    for (const std::int64_t offset : {0, 16}) {
      at::Tensor y = at::empty_like(x);
      cuda::RotaryTask task;
      task.x = values<T>(x);
      task.cosine = values<float>(cosine);
      task.sine = values<float>(sine);
      task.positions = values<std::int64_t>(places);
      task.tokens = 7;
      task.heads = 3;
      task.head_dim = 40;
      task.offset = offset;
      task.pairs = 12;
      task.interleaved = interleaved;
      for (std::int64_t i = 0; i < x.numel(); ++i) values<T>(y)[i] = cuda::rotated<T>(task, i / 120, i % 120);
      expect_same(y, plain_rotary(x, cosine, sine, places, {40, offset, interleaved}));
    }
}

TEST(LayerLanes, RoundsToBf16AsAtenDoes) {
  const at::Tensor x = at::cat({at::randn({5000}), at::linspace(-1e38, 1e38, 2001), at::full({1}, INFINITY)});
  const at::Tensor expected = x.to(at::kBFloat16);
  for (std::int64_t i = 0; i < x.numel(); ++i)
    ASSERT_EQ(cuda::narrow<cuda::Bf16>(values<float>(x)[i]).bits, values<std::uint16_t>(expected)[i]) << i;
  EXPECT_TRUE(std::isnan(cuda::widen(cuda::narrow<cuda::Bf16>(NAN))));
}

}  // namespace
}  // namespace layerpress::kernels
