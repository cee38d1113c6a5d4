#include "layerpress/kernels/scales/channel_ranges.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>

namespace layerpress::kernels {
namespace {

TEST(ChannelRanges, AsWithAten) {
  at::manual_seed(3);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat})
    for (const std::int64_t rows : {1, 3, 4, 511, 1030})
      for (const std::int64_t columns : {1, 15, 64, 577}) {
        const at::Tensor x = (at::randn({rows, columns}) + 2 * at::randn({columns})).to(dtype);
        EXPECT_TRUE(at::equal(channel_ranges(x), plain_channel_ranges(x))) << dtype << rows << ' ' << columns;
      }
}

TEST(ChannelRanges, InfinityAndNan) {
  at::Tensor x = at::ones({700, 40}).to(at::kBFloat16);
  x[600][7] = -std::numeric_limits<float>::infinity();
  EXPECT_TRUE(at::equal(channel_ranges(x), plain_channel_ranges(x)));
  x[3][5] = std::numeric_limits<float>::quiet_NaN();
  const at::Tensor ranges = channel_ranges(x);
  EXPECT_TRUE(ranges[0][5].isnan().item<bool>() && ranges[1][5].isnan().item<bool>());
  EXPECT_EQ(ranges[0][7].item<float>(), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(ranges[1][6].item<float>(), 1);
}

}  // namespace
}  // namespace layerpress::kernels
