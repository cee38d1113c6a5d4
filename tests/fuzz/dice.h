#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace layerpress::fuzz {

/// The choices of a mutation, by libFuzzer's seed.
using Dice = std::minstd_rand;

inline std::size_t below(std::size_t count, Dice& dice) {
  return std::uniform_int_distribution<std::size_t>(0, count - 1)(dice);
}

template <typename T>
const T& one_of(const std::vector<T>& values, Dice& dice) {
  return values[below(values.size(), dice)];
}

/// Numbers at limits.
inline const std::vector<std::int64_t>& integers() {
  static const std::vector<std::int64_t> kAll = {0,
                                                 1,
                                                 -1,
                                                 2,
                                                 3,
                                                 4,
                                                 7,
                                                 8,
                                                 16,
                                                 31,
                                                 32,
                                                 64,
                                                 127,
                                                 128,
                                                 255,
                                                 256,
                                                 1 << 16,
                                                 1 << 24,
                                                 std::numeric_limits<std::int32_t>::max(),
                                                 std::int64_t{1} << 32,
                                                 std::numeric_limits<std::int64_t>::max(),
                                                 std::numeric_limits<std::int64_t>::min()};
  return kAll;
}

}  // namespace layerpress::fuzz
