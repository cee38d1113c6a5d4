#include "layerpress/residency/host_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "layerpress/base/system/machine.h"

namespace layerpress::residency {
namespace {

constexpr std::int64_t kMebi = 1 << 20;

at::Tensor touched(std::int64_t bytes) { return at::ones({bytes}, at::kByte); }

TEST(HostMemory, KeepsBlocksInsideTheLimitOnly) {
  HostMemory memory;
  const std::uint64_t before = anonymous_bytes(), used = memory.used_bytes();
  memory.limit(used + 64 * kMebi);
  { const at::Tensor a = touched(48 * kMebi); }
  EXPECT_EQ(memory.used_bytes(), used);
  EXPECT_GT(anonymous_bytes(), before + 40 * kMebi);  // kept for the next one
  {
    const at::Tensor b = touched(40 * kMebi);  // cut from the kept block
    EXPECT_LT(anonymous_bytes(), before + 60 * kMebi);
  }
  memory.limit(0);
  EXPECT_LT(anonymous_bytes(), before + 8 * kMebi);
}

TEST(HostMemory, GivesABlockOfAboutTheSizeAgain) {
  HostMemory memory;
  memory.limit(memory.used_bytes() + 64 * kMebi);
  const void* first = nullptr;
  {
    const at::Tensor a = touched(16 * kMebi);
    first = a.data_ptr();
  }
  const at::Tensor b = touched(15 * kMebi);
  EXPECT_EQ(b.data_ptr(), first);
}

TEST(HostMemory, ReturnsWhatNobodyWantedForLongestFirst) {
  HostMemory memory;
  memory.limit(memory.used_bytes() + 64 * kMebi);
  { const at::Tensor seldom = touched(30 * kMebi); }
  const void* often = nullptr;
  {
    const at::Tensor a = touched(16 * kMebi);
    often = a.data_ptr();
  }
  { const at::Tensor other = touched(24 * kMebi); }  // no room for all three
  const at::Tensor a = touched(16 * kMebi);
  EXPECT_EQ(a.data_ptr(), often);
}

/// Whether a block that nobody has written to begins with what an earlier one held; new pages are zero.
bool begins_with_old_pages(std::int64_t bytes) { return at::empty({bytes}, at::kByte)[0].item<int>() == 1; }

TEST(HostMemory, MakesBlocksOfFreedPages) {
  HostMemory memory;
  memory.limit(memory.used_bytes() + 64 * kMebi);
  { const at::Tensor a = touched(48 * kMebi); }
  EXPECT_FALSE(begins_with_old_pages(8 * kMebi));  // there is room for new ones
  EXPECT_TRUE(begins_with_old_pages(20 * kMebi));  // cut from the kept block
}

TEST(HostMemory, TensorsOutliveIt) {
  at::Tensor a;
  {
    HostMemory memory;
    a = touched(8 * kMebi);
  }
  EXPECT_EQ(a[5].item<int>(), 1);
  a = at::Tensor();
  const at::Tensor b = touched(8 * kMebi);  // and the usual allocator is back
  EXPECT_EQ(b.sum().item<std::int64_t>(), 8 * kMebi);
}

}  // namespace
}  // namespace layerpress::residency
