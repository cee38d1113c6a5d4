// What goes on between a GPU and the host. Without a GPU these tests are skipped.
#include "tests/kernels/on_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/residency/activation_store.h"
#include "layerpress/residency/onload.h"
#include "layerpress/residency/pinned_weights.h"
#include "tests/residency/memory_weights.h"

namespace layerpress::residency {
namespace {

/// Something that takes the device a while.
at::Tensor busy(const at::Tensor& x) {
  at::Tensor y = x;
  for (int i = 0; i < 20; ++i) y = at::matmul(y, at::eye(y.size(1), y.options())) + 1;
  return y;
}

TEST_F(OnDevice, ActivationsComeBackFromTheHostAsTheyWere) {
  constexpr std::size_t kBatches = 12;
  ActivationStore::Options options;
  options.copies = host_copies(kGpu);
  ActivationStore store(kBatches, options);
  const auto input = [](std::size_t b) {
    return at::full({1024, 512}, static_cast<double>(b), at::TensorOptions(kGpu).dtype(at::kFloat));
  };
  for (std::size_t b = 0; b < kBatches; ++b) {
    store.read_ahead({}, b + 1);
    store.put(1, b, busy(input(b)));
  }
  for (int round = 1; round < 3; ++round)
    for (std::size_t b = 0; b < kBatches; ++b) {
      store.read_ahead({1}, b + 1);
      const at::Tensor there = store.get(1, b);
      EXPECT_TRUE(there.is_cuda());
      EXPECT_TRUE(there.eq(static_cast<double>(b) + 20.0 * round).all().item<bool>()) << b << " in round " << round;
      store.put(1, b, busy(there));
    }
}

TEST_F(OnDevice, ActivationsThatWereJoinedOnTheHostReachTheDevice) {
  ActivationStore::Options options;
  options.copies = host_copies(kGpu);
  ActivationStore store(1, options);
  const at::Tensor joined = at::randn({100, 64});
  store.put(1, 0, joined);
  EXPECT_TRUE(at::equal(store.get(1, 0).cpu(), joined));
}

TEST_F(OnDevice, WeightsComeThroughPinnedMemory) {
  test::MemoryWeights stored;
  for (const char* name : {"embed.weight", "head.weight"}) stored.tensors[name] = at::randn({50, 32});
  const PinnedWeights weights(stored);
  weights.fetch("embed.weight");
  EXPECT_TRUE(weights.load("embed.weight").is_pinned());
  const Onload parameters(weights, {"embed.weight", "head.weight"}, {kGpu, at::kBFloat16});
  for (const char* name : {"embed.weight", "head.weight"})
    EXPECT_TRUE(at::equal(parameters.parameter(name).cpu(), stored.tensors.at(name).to(at::kBFloat16))) << name;
}

}  // namespace
}  // namespace layerpress::residency
