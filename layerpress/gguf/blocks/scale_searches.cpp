#include "layerpress/gguf/blocks/scale_searches.h"

#include <algorithm>
#include <cmath>

#include "layerpress/gguf/blocks/search_lanes.h"

namespace layerpress::gguf {
namespace {

constexpr int kSymmetricTries = 9;  // on either side of the greatest magnitude at the lowest code
constexpr int kNonlinearTries = 7;
constexpr int kUnitTries = 4;
constexpr int kSweeps = 5;  // of changes of one code at a time

constexpr int kVectors = 5;
static_assert(kVectors * kLanes >= 2 * kSymmetricTries + 1 && (kVectors - 1) * kLanes >= 2 * kNonlinearTries + 2);

/// Candidates for a scale: inverses, and the weighted sums for the levels that they give.
struct Candidates {
  Vector inverses[kVectors]{}, products[kVectors]{}, squares[kVectors]{};

  void set(int candidate, float inverse) { inverses[candidate / kLanes][candidate % kLanes] = inverse; }
  float inverse(int candidate) const { return inverses[candidate / kLanes][candidate % kLanes]; }
};

/// A scale, and the inverse that its codes came from.
struct BestScale {
  float inverse = 0, scale = 0;
};

/// The candidate whose levels have the least error at their best scale; the first one if none is better than 0.
BestScale best_of(const Candidates& candidates, int count) {
  BestScale best{candidates.inverse(0)};
  float reduction = 0;  // of the error
  for (int i = 0; i < count; ++i) {
    const float products = candidates.products[i / kLanes][i % kLanes];
    const float squares = candidates.squares[i / kLanes][i % kLanes];
    if (!(squares > 0) || !(products * products > reduction * squares)) continue;
    best = {candidates.inverse(i), products / squares};
    reduction = best.scale * products;
  }
  return best;
}

inline Vector symmetric_level(Vector value, Vector lowest, Vector greatest) {
  const Vector whole = rounded(value);
  const Vector level = whole < greatest ? whole : greatest;
  return level > lowest ? level : lowest;
}

template <int kCount>
void sum_symmetric(const float* values, const float* weights, float half, Candidates& candidates) {
  const Vector lowest = constant(-half), greatest = constant(half - 1);
  for (int v = 0; v < kVectors; ++v) {
    const Vector inverse = candidates.inverses[v];
    Vector products{}, squares{};
    for (int i = 0; i < kCount; ++i) {
      const Vector level = symmetric_level(inverse * values[i], lowest, greatest);
      products += weights[i] * values[i] * level;
      squares += weights[i] * level * level;
    }
    candidates.products[v] = products;
    candidates.squares[v] = squares;
  }
}

constexpr float nonlinear_border(int upper) { return 0.5f * (kNonlinearLevels[upper - 1] + kNonlinearLevels[upper]); }

inline Vector nonlinear_level(Vector value) {
  Vector level = constant(kNonlinearLevels[0]);
  for (int l = 1; l < 16; ++l)
    level +=
        value < constant(nonlinear_border(l)) ? constant(0) : constant(kNonlinearLevels[l] - kNonlinearLevels[l - 1]);
  return level;
}

void sum_nonlinear(const float* values, const float* weights, Candidates& candidates) {
  for (int v = 0; v < kVectors - 1; ++v) {
    const Vector inverse = candidates.inverses[v];
    Vector products{}, squares{};
    for (int i = 0; i < 32; ++i) {
      const Vector level = nonlinear_level(inverse * values[i]);
      products += weights[i] * level * values[i];
      squares += weights[i] * level * level;
    }
    candidates.products[v] = products;
    candidates.squares[v] = squares;
  }
}

/// Levels of values for a common scale, and the sums that determine it.
struct LevelSums {
  int count;
  const float* values;
  const float* weights;
  int levels[16];
  float products = 0, squares = 0;

  void add(int i, int level) {
    levels[i] = level;
    products += weights[i] * values[i] * static_cast<float>(level);
    squares += weights[i] * static_cast<float>(level) * static_cast<float>(level);
  }

  float scale() const { return squares > 0 ? products / squares : 0; }
};

/// Gives value i the level that is best if the others stay; whether that reduces the error.
bool change_level(LevelSums& sums, int i, int lowest, int greatest) {
  const float value = sums.values[i], weight = sums.weights[i];
  const auto level = static_cast<float>(sums.levels[i]);
  const float products = sums.products - weight * value * level, squares = sums.squares - weight * level * level;
  if (!(products > 0)) return false;
  const int wanted = std::clamp(nearest_integer(value * squares / products), lowest, greatest);
  if (wanted == sums.levels[i]) return false;
  const auto other = static_cast<float>(wanted);
  const float new_products = products + weight * value * other, new_squares = squares + weight * other * other;
  if (!(new_squares > 0) || !(new_products * new_products * sums.squares > sums.products * sums.products * new_squares))
    return false;
  sums.levels[i] = wanted;
  sums.products = new_products;
  sums.squares = new_squares;
  return true;
}

void change_levels(LevelSums& sums, int lowest, int greatest) {
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    bool changed = false;
    for (int i = 0; i < sums.count; ++i) changed |= change_level(sums, i, lowest, greatest);
    if (!changed) return;
  }
}

/// The error of the levels that a unit gives, all of them at most `greatest`.
float unit_error(int count, const float* values, const float* weights, float inverse, int greatest) {
  const float unit = 1 / inverse;
  float error = 0;
  for (int i = 0; i < count; ++i) {
    const int level = std::min(nearest_integer(inverse * values[i]), greatest);
    const float difference = values[i] - unit * static_cast<float>(level);
    error += weights[i] * difference * difference;
  }
  return error;
}

/// The inverse of a unit for scales up to `maximum`.
float best_inverse(int count, const float* values, const float* weights, int greatest_code, float maximum) {
  const auto codes = static_cast<float>(greatest_code);
  float best = codes / maximum, least = unit_error(count, values, weights, best, greatest_code);
  for (int step = -kUnitTries; step <= kUnitTries; ++step) {
    if (step == 0) continue;
    const float inverse = (0.1f * static_cast<float>(step) + codes) / maximum;
    const float error = unit_error(count, values, weights, inverse, greatest_code);
    if (error < least) {
      least = error;
      best = inverse;
    }
  }
  return best;
}

}  // namespace

float farthest_from_zero(int count, const float* values) {
  float farthest = 0;
  for (int i = 0; i < count; ++i)
    if (std::fabs(values[i]) > std::fabs(farthest)) farthest = values[i];
  return farthest;
}

float search_symmetric(int count, const float* values, const float* weights, int half, std::uint8_t* codes) {
  const float maximum = farthest_from_zero(count, values);
  if (std::fabs(maximum) < kSmallestScale) {
    std::fill_n(codes, count, std::uint8_t{0});
    return 0;
  }
  const auto lowest = static_cast<float>(half);
  Candidates candidates;
  candidates.set(0, -lowest / maximum);
  for (int step = -kSymmetricTries, i = 1; step <= kSymmetricTries; ++step)
    if (step != 0) candidates.set(i++, -(lowest + 0.1f * static_cast<float>(step)) / maximum);
  if (count == 16)
    sum_symmetric<16>(values, weights, lowest, candidates);
  else
    sum_symmetric<32>(values, weights, lowest, candidates);
  const BestScale best = best_of(candidates, 2 * kSymmetricTries + 1);
  for (int i = 0; i < count; ++i)
    codes[i] = static_cast<std::uint8_t>(std::clamp(nearest_integer(best.inverse * values[i]), -half, half - 1) + half);
  return best.scale;
}

float refine_symmetric(const float* values, int half, std::uint8_t* codes) {
  const float maximum = farthest_from_zero(16, values);
  if (std::fabs(maximum) < kSmallestScale) {
    std::fill_n(codes, 16, std::uint8_t{0});
    return 0;
  }
  float weights[16];
  for (int i = 0; i < 16; ++i) weights[i] = values[i] * values[i];
  LevelSums sums{16, values, weights, {}};
  const float inverse = -static_cast<float>(half) / maximum;
  for (int i = 0; i < 16; ++i) sums.add(i, std::clamp(nearest_integer(inverse * values[i]), -half, half - 1));
  change_levels(sums, -half, half - 1);
  for (int i = 0; i < 16; ++i) codes[i] = static_cast<std::uint8_t>(sums.levels[i] + half);
  return sums.scale();
}

float search_unit(int count, const float* values, const float* weights, int greatest_code, std::uint8_t* codes) {
  float maximum = 0;
  for (int i = 0; i < count; ++i) maximum = maximum > values[i] ? maximum : values[i];
  std::fill_n(codes, count, std::uint8_t{0});
  if (maximum < kSmallestScale) return 0;
  const float inverse = best_inverse(count, values, weights, greatest_code, maximum);
  LevelSums sums{count, values, weights, {}};
  for (int i = 0; i < count; ++i) sums.add(i, std::clamp(nearest_integer(inverse * values[i]), 0, greatest_code));
  change_levels(sums, 0, greatest_code);
  for (int i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(sums.levels[i]);
  return sums.scale();
}

float search_nonlinear(const float* values, const float* weights) {
  const float maximum = farthest_from_zero(32, values);
  if (std::fabs(maximum) < kSmallestScale) return 0;
  Candidates candidates;
  candidates.set(0, 1 / (-maximum / kNonlinearLevels[0]));
  for (int step = -kNonlinearTries, i = 1; step <= kNonlinearTries; ++step)
    candidates.set(i++, (static_cast<float>(step) + kNonlinearLevels[0]) / maximum);
  sum_nonlinear(values, weights, candidates);
  return best_of(candidates, 2 * kNonlinearTries + 2).scale;
}

}  // namespace layerpress::gguf
