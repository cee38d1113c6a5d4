#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace layerpress::recipe {

/// What a candidate scheme costs where it is chosen.
struct PrecisionOption {
  std::uint64_t bits = 0;  ///< as stored
  double loss = 0;         ///< predicted; finite and not negative
};

/// Modules that get one scheme: an option for each candidate.
using PrecisionUnit = std::vector<PrecisionOption>;

/// Of the smallest option.
std::uint64_t least_bits(const PrecisionUnit& unit);

/// A candidate for each unit.
struct PrecisionChoice {
  std::vector<std::size_t> candidates;  ///< of each unit
  std::uint64_t bits = 0;
  double loss = 0;
};

/// The choices with the least sum of losses, for every sum of bits: the multiple-choice knapsack, solved by dynamic programming. Sums
/// of bits are multiples of the greatest common divisor of the options' differences, which makes the result exact, unless that
/// would be too many; they are then multiples of a larger step.
class PrecisionChoices {
 public:
  /// REQUIRES: units, each with equally many options, at least one.
  explicit PrecisionChoices(const std::vector<PrecisionUnit>& units);

  std::uint64_t least_bits() const { return least_; }    ///< of all choices
  std::uint64_t greatest_bits() const { return most_; }  ///< of all choices

  /// The least loss within the budget, and of equal losses the fewest bits. Nothing: the budget is below least_bits().
  std::optional<PrecisionChoice> within(std::uint64_t budget) const;

  /// within(budget) is at least as good as every choice within budget - slack_bits(). 0: it is the best.
  std::uint64_t slack_bits() const { return slack_; }

 private:
  void add(const PrecisionUnit& unit);
  std::size_t steps(const PrecisionOption& option, std::uint64_t least) const;

  const std::vector<PrecisionUnit>& units_;
  std::uint64_t least_ = 0, most_ = 0, step_ = 1, slack_ = 0;
  std::vector<double> losses_;  // by steps above least_; infinite where no choice has this many
  std::vector<std::vector<std::uint8_t>>
      taken_;  // by unit and steps: its candidate in the best choice of the units so far
};

}  // namespace layerpress::recipe
