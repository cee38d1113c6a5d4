#include "layerpress/recipe/precision_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

namespace layerpress::recipe {
namespace {

using Units = std::vector<PrecisionUnit>;

/// Calls use(bits, loss) for every choice.
void for_each_choice(const Units& units, const std::function<void(std::uint64_t, double)>& use, std::size_t unit = 0,
                     std::uint64_t bits = 0, double loss = 0) {
  if (unit == units.size()) return use(bits, loss);
  for (const PrecisionOption& option : units[unit])
    for_each_choice(units, use, unit + 1, bits + option.bits, loss + option.loss);
}

double best_by_trying(const Units& units, std::uint64_t budget) {
  double best = 1e300;
  for_each_choice(units, [&](std::uint64_t bits, double loss) {
    if (bits <= budget) best = std::min(best, loss);
  });
  return best;
}

/// Sizes are multiples of `step`.
Units random_units(std::mt19937& random, std::size_t count, std::size_t candidates, std::uint64_t step) {
  std::uniform_int_distribution<std::uint64_t> size(1, 12);
  std::uniform_real_distribution<double> loss(0, 1);
  Units units(count);
  for (PrecisionUnit& unit : units)
    for (std::size_t c = 0; c < candidates; ++c) unit.push_back({step * size(random), loss(random)});
  return units;
}

void expect_consistent(const Units& units, const PrecisionChoice& choice) {
  std::uint64_t bits = 0;
  double loss = 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    bits += units[u].at(choice.candidates[u]).bits;
    loss += units[u].at(choice.candidates[u]).loss;
  }
  EXPECT_EQ(choice.bits, bits);
  EXPECT_NEAR(choice.loss, loss, 1e-12);
}

TEST(PrecisionChoices, IsTheBestOfAllChoices) {
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const Units units = random_units(random, 6, 3, 64);
    const PrecisionChoices choices(units);
    EXPECT_EQ(choices.slack_bits(), 0u);
    for (std::uint64_t budget = choices.least_bits(); budget <= choices.greatest_bits(); budget += 37) {
      const auto choice = choices.within(budget);
      ASSERT_TRUE(choice);
      expect_consistent(units, *choice);
      EXPECT_LE(choice->bits, budget);
      EXPECT_NEAR(choice->loss, best_by_trying(units, budget), 1e-12);
    }
  }
}

TEST(PrecisionChoices, KeepsItsBoundWhereSizesHaveNoLargeDivisor) {
  std::mt19937 random(2);
  std::uniform_int_distribution<std::uint64_t> size(1, 50'000'000);
  for (int round = 0; round < 3; ++round) {
    Units units = random_units(random, 6, 3, 1);
    for (PrecisionUnit& unit : units)
      for (PrecisionOption& option : unit) option.bits = size(random);
    const PrecisionChoices choices(units);
    ASSERT_GT(choices.slack_bits(), 0u);
    EXPECT_LT(choices.slack_bits(), (choices.greatest_bits() - choices.least_bits()) / 10'000);
    for (int share = 1; share < 10; ++share) {
      const std::uint64_t budget = choices.least_bits() + (choices.greatest_bits() - choices.least_bits()) *
                                                              static_cast<std::uint64_t>(share) / 10;
      const auto choice = choices.within(budget);
      ASSERT_TRUE(choice);
      expect_consistent(units, *choice);
      EXPECT_LE(choice->bits, budget);
      EXPECT_GE(choice->loss, best_by_trying(units, budget) - 1e-12);
      EXPECT_LE(choice->loss, best_by_trying(units, budget - choices.slack_bits()) + 1e-12);
    }
  }
}

TEST(PrecisionChoices, RefusesABudgetBelowTheSmallestChoice) {
  const Units units = {{{40, 1}, {80, 0}}, {{60, 2}, {90, 1}}};
  const PrecisionChoices choices(units);
  EXPECT_EQ(choices.least_bits(), 100u);
  EXPECT_EQ(choices.greatest_bits(), 170u);
  EXPECT_FALSE(choices.within(99));
  EXPECT_EQ(choices.within(100)->candidates, (std::vector<std::size_t>{0, 0}));
  EXPECT_EQ(choices.within(1000)->candidates, (std::vector<std::size_t>{1, 1}));
}

/// More bits that win nothing are not spent.
TEST(PrecisionChoices, TakesTheFewestBitsOfEqualLosses) {
  const Units units = {{{16, 0.5}, {8, 0.5}, {4, 1}}, {{16, 0}, {8, 0}, {4, 0}}};
  const auto choice = PrecisionChoices(units).within(32);
  EXPECT_EQ(choice->candidates, (std::vector<std::size_t>{1, 2}));
  EXPECT_EQ(choice->bits, 12u);
}

TEST(PrecisionChoices, OneCandidateLeavesNoChoice) {
  const Units units = {{{30, 1}}, {{50, 2}}};
  const PrecisionChoices choices(units);
  EXPECT_EQ(choices.within(80)->loss, 3);
  EXPECT_FALSE(choices.within(79));
}

}  // namespace
}  // namespace layerpress::recipe
