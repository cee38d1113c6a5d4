#include "layerpress/dist/device_transport.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/error.h"
#include "tests/dist/thread_ranks.h"

namespace layerpress::dist {
namespace {

RankDevice gpu(const std::string& host, const std::string& address) { return {host, address, ""}; }

TEST(DeviceTransport, IsDirectWhereEveryRankHasAGpuOfItsOwn) {
  EXPECT_EQ(reason_for_staging({gpu("a", "0000:3b:00"), gpu("a", "0000:5e:00"), gpu("b", "0000:3b:00")}), "");
}

TEST(DeviceTransport, GoesThroughTheHostWhereTwoRanksShareAGpu) {
  EXPECT_EQ(reason_for_staging({gpu("a", "0000:3b:00"), gpu("b", "0000:3b:00"), gpu("a", "0000:3b:00")}),
            "ranks 0 and 2 share the GPU 0000:3b:00");
}

TEST(DeviceTransport, GoesThroughTheHostWhereOneRankHasNoGpu) {
  EXPECT_EQ(reason_for_staging({gpu("a", "0000:3b:00"), {"a", "", "computes on the CPU"}}),
            "rank 1 computes on the CPU");
}

/// Ranks without a GPU share none.
TEST(DeviceTransport, NamesTheFirstRankWithoutAGpu) {
  EXPECT_EQ(reason_for_staging({{"a", "", "was built without NCCL"}, {"a", "", "computes on the CPU"}}),
            "rank 0 was built without NCCL");
}

TEST(DeviceTransport, TellsHostsApart) {
  EXPECT_TRUE(on_one_host({gpu("a", "1"), gpu("a", "2")}));
  EXPECT_FALSE(on_one_host({gpu("a", "1"), gpu("b", "1")}));
}

TEST(DeviceTransport, DevicesAreSentAsText) {
  const RankDevice sent{"3f\"\n", "0000:3b:00", "computes on the CPU"};
  const RankDevice received = RankDevice::from_text(sent.to_text());
  EXPECT_EQ(received.host, sent.host);
  EXPECT_EQ(received.address, sent.address);
  EXPECT_EQ(received.hindrance, sent.hindrance);
  EXPECT_THROW(RankDevice::from_text("{}"), DistributedError);
  EXPECT_THROW(RankDevice::from_text("no words"), DistributedError);
}

TEST(DeviceTransport, RanksOnTheCpuKnowWhy) {
  const auto errors = run_ranks(3, [](Group& group) {
    EXPECT_EQ(group.connect_devices(at::Device(at::kCPU)), "rank 0 computes on the CPU");
    const at::Tensor values = at::full({3}, 2.0f);
    group.all_reduce(values);
    EXPECT_TRUE(at::equal(values, at::full({3}, 6.0f)));
  });
  EXPECT_EQ(errors, std::vector<std::string>(3));
}

TEST(DeviceTransport, OneRankAsksNobody) {
  Group alone;
  EXPECT_EQ(alone.connect_devices(at::Device(at::kCPU)), "");
}

}  // namespace
}  // namespace layerpress::dist
