// Plans for a device need none: where activations live, and what the device's memory has to hold.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "layerpress/plan/run_plan.h"
#include "tests/plan/small_setup.h"

namespace layerpress::plan {
namespace {

constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max(), kMebibyte = 1u << 20;

class DevicePlan : public ::testing::Test {
 protected:
  RunPlan plan(std::uint64_t device_budget, setup::ActivationPlace place = setup::ActivationPlace::kAuto,
               std::int64_t batch_tokens = 2048) {
    run_.device_budget = device_budget;
    run_.place = place;
    return plan_run(
        {.run = run_, .samples = std::vector<SampleShape>(64, SampleShape{512}), .batch_tokens = batch_tokens});
  }

  static constexpr std::uint64_t kStream = 64 * 512 * 256 * 2;  // bytes of a value of the model's width
  const at::Device kGpu{at::kCUDA, 0};
  SmallSetup setup_{"GPTQModifier", {kGpu, at::kBFloat16}};
  setup::RunSetup& run_ = setup_.run;
};

TEST_F(DevicePlan, ActivationsStayOnTheDeviceWhereTheyFit) {
  const RunPlan roomy = plan(kUnlimited);
  EXPECT_TRUE(roomy.activation_home.is_cuda());
  EXPECT_GE(roomy.memory.peak.device, 3 * kStream);  // the stream, and what goes into down_proj
  const RunPlan on_host = plan(kUnlimited, setup::ActivationPlace::kCpu);
  EXPECT_TRUE(on_host.activation_home.is_cpu());
  // What goes into down_proj is computed again there, because that takes less time than moving it twice.
  const std::uint64_t activations = most(on_host, &SubgraphPlan::activation_bytes);
  EXPECT_GE(activations, kStream);
  EXPECT_LT(activations, 2 * kStream);
  // Each plan begins with the memory that this process has by then.
  EXPECT_NEAR(static_cast<double>(on_host.memory.peak.host - roomy.memory.peak.host), static_cast<double>(activations),
              static_cast<double>(kStream));
}

TEST_F(DevicePlan, ThenTheyAreComputedAgainThenTheyWaitOnTheHostThenTheRunIsRefused) {
  const RunPlan roomy = plan(kUnlimited), frugal = plan(kUnlimited, setup::ActivationPlace::kCpu);
  ASSERT_GT(roomy.memory.peak.device, frugal.memory.peak.device + 2 * kStream);
  const RunPlan again = plan(roomy.memory.peak.device - 1);
  EXPECT_TRUE(again.activation_home.is_cuda());
  EXPECT_LT(again.memory.peak.device, roomy.memory.peak.device);
  EXPECT_EQ(most(again, &SubgraphPlan::statistics_bytes), most(roomy, &SubgraphPlan::statistics_bytes));
  const RunPlan on_host = plan(frugal.memory.peak.device);
  EXPECT_TRUE(on_host.activation_home.is_cpu());
  EXPECT_LE(on_host.memory.peak.device, frugal.memory.peak.device);
  try {
    plan(kMebibyte);
    FAIL() << "a MiB is enough";
  } catch (const MemoryError& error) {
    EXPECT_NE(std::string(error.what()).find("--device-memory-budget"), std::string::npos) << error.what();
  }
}

TEST_F(DevicePlan, CountsWhatIsOnItsWayBetweenDeviceAndHost) {
  // A batch of 2048 tokens: three of them of what a stage reads, and what goes into down_proj.
  const RunPlan on_host = plan(kUnlimited, setup::ActivationPlace::kCpu);
  EXPECT_GE(most(on_host, &SubgraphPlan::transient_bytes), 3u * 2048 * 256 * 2 + 2048u * 768 * 2);
}

TEST_F(DevicePlan, CountsPinnedMemoryInPowersOfTwo) {
  // 21 batches of three samples, a MiB instead of 3/4 each, and one of a sample; a batch's new value is stored beside the old one.
  const RunPlan on_host = plan(kUnlimited, setup::ActivationPlace::kCpu, 3 * 512);
  EXPECT_EQ(most(on_host, &SubgraphPlan::activation_bytes), 22 * kMebibyte + kMebibyte / 4);
}

TEST_F(DevicePlan, TheSolversStackIsOnTheDevice) {
  // gate and up: 1536 rows of 256 columns in fp32, and codes.
  EXPECT_GE(most(plan(kUnlimited), &SubgraphPlan::workspace_bytes), 1536u * 256 * 5);
}

}  // namespace
}  // namespace layerpress::plan
