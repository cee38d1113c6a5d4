#include "layerpress/recipe/precision_choice.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace layerpress::recipe {
namespace {

constexpr std::uint64_t kMostSteps = 100000;
constexpr double kNoChoice = std::numeric_limits<double>::infinity();

bool takes_fewer(const PrecisionOption& left, const PrecisionOption& right) { return left.bits < right.bits; }

std::uint64_t greatest_bits(const PrecisionUnit& unit) {
  return std::max_element(unit.begin(), unit.end(), takes_fewer)->bits;
}

}  // namespace

std::uint64_t least_bits(const PrecisionUnit& unit) {
  return std::min_element(unit.begin(), unit.end(), takes_fewer)->bits;
}

PrecisionChoices::PrecisionChoices(const std::vector<PrecisionUnit>& units) : units_(units) {
  std::uint64_t divisor = 0;
  for (const PrecisionUnit& unit : units) {
    const std::uint64_t least = recipe::least_bits(unit);
    least_ += least, most_ += recipe::greatest_bits(unit);
    for (const PrecisionOption& option : unit) divisor = std::gcd(divisor, option.bits - least);
  }
  const std::uint64_t range = most_ - least_;
  step_ = std::max<std::uint64_t>(1, divisor);
  if (range / step_ > kMostSteps) {
    step_ = range / kMostSteps + 1;
    slack_ = step_ * units.size();  // an option is rounded up by less than a step
  }
  losses_.assign(1, 0.0);
  for (const PrecisionUnit& unit : units) add(unit);
}

std::size_t PrecisionChoices::steps(const PrecisionOption& option, std::uint64_t least) const {
  return static_cast<std::size_t>((option.bits - least + step_ - 1) / step_);
}

void PrecisionChoices::add(const PrecisionUnit& unit) {
  const std::uint64_t least = recipe::least_bits(unit);
  const std::size_t before = losses_.size();
  const std::size_t more = (static_cast<std::size_t>(recipe::greatest_bits(unit) - least) + step_ - 1) / step_;
  std::vector<double> losses(before + more, kNoChoice);
  std::vector<std::uint8_t> taken(before + more, 0);
  for (std::size_t candidate = 0; candidate < unit.size(); ++candidate) {
    const std::size_t shift = steps(unit[candidate], least);
    for (std::size_t i = 0; i < before; ++i) {
      const double loss = losses_[i] + unit[candidate].loss;
      if (loss >= losses[i + shift]) continue;
      losses[i + shift] = loss;
      taken[i + shift] = static_cast<std::uint8_t>(candidate);
    }
  }
  losses_ = std::move(losses);
  taken_.push_back(std::move(taken));
}

std::optional<PrecisionChoice> PrecisionChoices::within(std::uint64_t budget) const {
  if (budget < least_) return std::nullopt;
  const auto end = losses_.begin() +
                   static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(losses_.size(), (budget - least_) / step_ + 1));
  const auto best = std::min_element(losses_.begin(), end);
  PrecisionChoice choice{.candidates = std::vector<std::size_t>(units_.size()), .bits = 0, .loss = 0};
  auto place = static_cast<std::size_t>(best - losses_.begin());
  for (std::size_t u = units_.size(); u-- > 0;) {
    const std::size_t candidate = taken_[u][place];
    choice.candidates[u] = candidate;
    choice.bits += units_[u][candidate].bits, choice.loss += units_[u][candidate].loss;
    place -= steps(units_[u][candidate], recipe::least_bits(units_[u]));
  }
  return choice;
}

}  // namespace layerpress::recipe
