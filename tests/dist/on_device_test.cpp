// What goes on between GPUs. Without one, or with one where two are needed, these tests are skipped.
#include "tests/kernels/on_device.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "layerpress/base/error.h"
#include "layerpress/dist/device_backend.h"
#include "layerpress/dist/device_collectives.h"
#include "tests/dist/thread_ranks.h"

namespace layerpress::dist {
namespace {

at::TensorOptions on(const at::Device& device) { return at::TensorOptions(at::kFloat).device(device); }

at::Device gpu_of(const Group& group) { return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(group.rank())); }

/// All operations of two ranks, on their devices.
void use_all_operations(Group& group, const at::Device& device) {
  const auto own = static_cast<float>(group.rank() + 1);
  const at::Tensor sum = at::full({1000, 1000}, own, on(device));
  Group::Pending pending = group.start_all_reduce(sum);
  const at::Tensor of_first = at::full({5}, own, on(device));
  group.start_reduce(of_first, 0).wait();
  pending.wait();
  EXPECT_TRUE(sum.eq(3).all().item<bool>());
  EXPECT_TRUE(group.rank() != 0 || of_first.eq(3).all().item<bool>());
  const at::Tensor most = at::full({3}, own, on(device)), least = at::full({3}, -own, on(device));
  group.all_reduce(most, Reduction::kMax);
  group.start_reduce(least, 0, Reduction::kMax).wait();
  EXPECT_TRUE(most.eq(2).all().item<bool>());
  EXPECT_TRUE(group.rank() != 0 || least.eq(-1).all().item<bool>());
  const at::Tensor given = at::full({2, 3}, own, on(device));
  group.broadcast(given, 1);
  EXPECT_TRUE(given.eq(2).all().item<bool>());
  const std::vector<at::Tensor> all = group.all_gather(at::full({2, 3}, group.rank(), on(device).dtype(at::kByte)));
  ASSERT_EQ(all.size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const at::Tensor& part = all[static_cast<std::size_t>(rank)];
    EXPECT_EQ(part.device(), sum.device());
    EXPECT_EQ(part.sizes(), at::IntArrayRef({2, 3}));
    EXPECT_TRUE(part.eq(rank).all().item<bool>());
  }
  const at::Tensor on_host = at::full({3}, 1.0f);
  group.all_reduce(on_host);
  EXPECT_TRUE(at::equal(on_host, at::full({3}, 2.0f)));
}

TEST_F(OnDevice, NcclOfOneRankGivesItsOwn) {
  const RankDevice gpu = describe_device(kGpu);
  if (gpu.address.empty()) GTEST_SKIP() << gpu.hindrance;
  DeviceCollectives devices(make_device_backend(c10::make_intrusive<c10d::HashStore>(), 0, 1, ""), kGpu,
                            [] { return false; });
  devices.connect({std::chrono::seconds(60), nullptr});
  std::vector<at::Tensor> values = {at::arange(1000, on(kGpu))};
  devices.wait(*devices.backend().allreduce(values), [] {});
  EXPECT_TRUE(at::equal(values.front().cpu(), at::arange(1000, at::kFloat)));
  EXPECT_TRUE(devices.close([] {}));
}

TEST_F(OnDevice, RanksThatShareAGpuGoThroughTheHost) {
  const auto errors = run_ranks(2, [](Group& group) {
    EXPECT_NE(group.connect_devices(kGpu), "");
    use_all_operations(group, kGpu);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

/// Needs two GPUs.
class OnDevices : public OnDevice {
 protected:
  void SetUp() override {
    OnDevice::SetUp();
    if (IsSkipped()) return;
    if (at::getNumGPUs() < 2) GTEST_SKIP() << "one GPU";
    if (const RankDevice gpu = describe_device(kGpu); gpu.address.empty()) GTEST_SKIP() << gpu.hindrance;
  }
};

TEST_F(OnDevices, RanksWithGpusOfTheirOwnUseNccl) {
  const auto errors = run_ranks(2, [](Group& group) {
    EXPECT_EQ(group.connect_devices(gpu_of(group)), "");
    use_all_operations(group, gpu_of(group));
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
}

TEST_F(OnDevices, ARankThatFailsEndsTheOthersOperation) {
  const auto errors = run_ranks(2, [](Group& group) {
    EXPECT_EQ(group.connect_devices(gpu_of(group)), "");
    if (group.rank() == 1) throw DataError("[data] row 7: is no text");
    group.all_reduce(at::ones({1 << 20}, on(gpu_of(group))));
    ADD_FAILURE() << "there was nobody to add to";
  });
  EXPECT_NE(errors[0].find("): [data] row 7: is no text"), std::string::npos) << errors[0];
}

}  // namespace
}  // namespace layerpress::dist
