#include "layerpress/dist/division.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

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

std::vector<double> loads(const std::vector<double>& costs, const std::vector<int>& owners, int ranks) {
  std::vector<double> sums(static_cast<std::size_t>(ranks));
  for (std::size_t item = 0; item < costs.size(); ++item)
    sums.at(static_cast<std::size_t>(owners[item])) += costs[item];
  return sums;
}

TEST(DivideByCost, TheLargestGoFirst) {
  EXPECT_EQ(divide_by_cost({1, 5, 4, 2, 3}, 2), (std::vector<int>{0, 0, 1, 0, 1}));
  EXPECT_EQ(divide_by_cost({1, 1, 10}, 2), (std::vector<int>{1, 1, 0}));
  EXPECT_EQ(divide_by_cost({3, 2}, 4), (std::vector<int>{0, 1}));
  EXPECT_EQ(divide_by_cost({}, 3), std::vector<int>{});
  EXPECT_EQ(divide_by_cost({7, 8}, 1), (std::vector<int>{0, 0}));
}

TEST(DivideByCost, EqualCostsAreDealtInOrder) {
  EXPECT_EQ(divide_by_cost({2, 2, 2, 2, 2}, 3), (std::vector<int>{0, 1, 2, 0, 1}));
  EXPECT_EQ(divide_by_cost({0, 0, 0, 0}, 2), (std::vector<int>{0, 1, 0, 1}));
}

TEST(DivideByCost, LoadsAreClose) {
  std::vector<double> costs;
  for (int i = 0; i < 200; ++i) costs.push_back(1 + i * 37 % 101);
  const double total = std::accumulate(costs.begin(), costs.end(), 0.0);
  for (const int ranks : {1, 2, 3, 4, 8, 64}) {
    const std::vector<double> sums = loads(costs, divide_by_cost(costs, ranks), ranks);
    const double largest = *std::max_element(sums.begin(), sums.end());
    EXPECT_LE(largest, 4.0 / 3.0 * std::max(total / ranks, 101.0)) << ranks;
    // Whoever has the most took its last item when it had the least.
    EXPECT_LE(largest - *std::min_element(sums.begin(), sums.end()), 101.0) << ranks;
    EXPECT_DOUBLE_EQ(std::accumulate(sums.begin(), sums.end(), 0.0), total);
  }
}

TEST(DivideByCost, MistakesAreCaught) {
  EXPECT_THROW(divide_by_cost({1}, 0), InternalError);
  EXPECT_THROW(divide_by_cost({1, -1}, 2), InternalError);
  EXPECT_THROW(divide_by_cost({std::numeric_limits<double>::quiet_NaN()}, 2), InternalError);
  EXPECT_THROW(divide_by_cost({std::numeric_limits<double>::infinity()}, 2), InternalError);
}

}  // namespace
}  // namespace layerpress::dist
