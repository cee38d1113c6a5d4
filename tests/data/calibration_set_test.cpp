#include "layerpress/data/calibration_set.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "layerpress/base/error.h"

namespace layerpress::data {
namespace {

using Order = std::vector<std::int64_t>;

TEST(ShuffledOrder, KnownValues) {
  // Computed with arbitrary-precision integers from the definitions of splitmix64 and Fisher-Yates.
  EXPECT_EQ(shuffled_order(10, 0), (Order{6, 3, 2, 9, 8, 1, 4, 7, 0, 5}));
  EXPECT_EQ(shuffled_order(10, 42), (Order{0, 9, 5, 8, 6, 4, 7, 2, 1, 3}));
  EXPECT_EQ(shuffled_order(7, 0xFFFFFFFFFFFFFFFFu), (Order{5, 4, 6, 2, 1, 3, 0}));
  EXPECT_EQ(shuffled_order(1, 5), Order{0});
  EXPECT_EQ(shuffled_order(0, 5), Order{});
}

TEST(ShuffledOrder, IsAPermutation) {
  Order order = shuffled_order(1000, 7);
  Order identity(1000);
  std::iota(identity.begin(), identity.end(), 0);
  EXPECT_NE(order, identity);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, identity);
}

CalibrationSet set_with_lengths(const std::vector<std::int64_t>& lengths) {
  CalibrationSet set;
  for (const std::int64_t length : lengths) set.sample_offsets.push_back(set.sample_offsets.back() + length);
  set.tokens.resize(static_cast<std::size_t>(set.token_count()));
  return set;
}

Order batch_ends(const std::vector<BatchRange>& batches) {
  Order ends;
  std::int64_t expected_first = 0;
  for (const BatchRange& batch : batches) {
    EXPECT_EQ(batch.first_sample, expected_first);
    EXPECT_LT(batch.first_sample, batch.last_sample);
    expected_first = batch.last_sample;
    ends.push_back(batch.last_sample);
  }
  return ends;
}

TEST(PackBatches, FillsBatchesInOrder) {
  const CalibrationSet set = set_with_lengths({4, 4, 2, 9, 30, 1, 1, 10});
  EXPECT_EQ(batch_ends(pack_batches(set, 10)), (Order{3, 4, 5, 7, 8}));
  EXPECT_EQ(batch_ends(pack_batches(set, 1)), (Order{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(batch_ends(pack_batches(set, 1000)), Order{8});
  EXPECT_EQ(batch_ends(pack_batches(set, 61)), Order{8});
  EXPECT_EQ(batch_ends(pack_batches(set, 60)), (Order{7, 8}));
}

TEST(CalibrationSet, ShortSamplesAreTakenOut) {
  CalibrationSet set = set_with_lengths({3, 1, 2, 1});
  std::iota(set.tokens.begin(), set.tokens.end(), 0);
  set.loss_mask = {1, 0, 1, 0, 1, 1, 0};
  set.places = {5, 2, 7, 0};
  CalibrationSet same = set;
  EXPECT_TRUE(same.take_shorter(1).empty());
  EXPECT_EQ(same.tokens, set.tokens);
  EXPECT_EQ(set.take_shorter(2), (Order{2, 0}));
  EXPECT_EQ(set.tokens, (std::vector<std::int32_t>{0, 1, 2, 4, 5}));
  EXPECT_EQ(set.sample_offsets, (Order{0, 3, 5}));
  EXPECT_EQ(set.loss_mask, (std::vector<std::uint8_t>{1, 0, 1, 1, 1}));
  EXPECT_EQ(set.places, (Order{5, 7}));
  set.places.clear();
  EXPECT_EQ(set.take_shorter(9), (Order{0, 1}));
  EXPECT_EQ(set.sample_count(), 0);
}

TEST(PackBatches, NothingGivesNoBatches) {
  EXPECT_TRUE(pack_batches(CalibrationSet(), 10).empty());
  EXPECT_THROW(pack_batches(CalibrationSet(), 0), InternalError);
}

}  // namespace
}  // namespace layerpress::data
