#include "layerpress/dist/division.h"

#include <gtest/gtest.h>

#include <limits>

#include "layerpress/base/error.h"

namespace layerpress::dist {
namespace {

TEST(Partition, PartsFollowEachOtherAndDifferByAtMostOne) {
  for (const std::int64_t count : {0, 1, 2, 7, 8, 9, 1000})
    for (const int ranks : {1, 2, 3, 4, 8, 1024}) {
      std::int64_t reached = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Slice part = partition(count, rank, ranks);
        EXPECT_EQ(part.first, reached);
        EXPECT_EQ(part.first, count * rank / ranks);
        EXPECT_GE(part.size(), count / ranks);
        EXPECT_LE(part.size(), count / ranks + (count % ranks != 0));
        reached = part.last;
      }
      EXPECT_EQ(reached, count) << ranks;
    }
}

TEST(Partition, LargeCountsDoNotOverflow) {
  constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();  // divisible by 7, not by 1024
  EXPECT_EQ(partition(kLargest, 3, 7).first, kLargest / 7 * 3);
  EXPECT_EQ(partition(kLargest, 1023, 1024).last, kLargest);
  EXPECT_EQ(partition(kLargest, 511, 1024).last, kLargest / 2);
}

TEST(Partition, MistakesAreCaught) {
  EXPECT_THROW(partition(-1, 0, 1), InternalError);
  EXPECT_THROW(partition(3, -1, 2), InternalError);
  EXPECT_THROW(partition(3, 2, 2), InternalError);
  EXPECT_THROW(partition(3, 0, 0), InternalError);
}

}  // namespace
}  // namespace layerpress::dist
