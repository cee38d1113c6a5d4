#pragma once

#include <cstdint>
#include <vector>

namespace layerpress::dist {

/// A run of consecutive items.
struct Slice {
  std::int64_t first = 0;
  std::int64_t last = 0;  ///< one behind
  std::int64_t size() const { return last - first; }
};

/// The items of `rank` when `count` are divided among `ranks`: floor(count * rank / ranks) to floor(count * (rank + 1)
/// / ranks). Sizes differ by at most one. REQUIRES: count >= 0, 0 <= rank < ranks.
Slice partition(std::int64_t count, int rank, int ranks);

/// Gives each item to the rank with the least so far, the largest items first (Graham 1969: the largest sum is at most
/// 4/3 of the best possible); the result names an owner per item. Equal costs keep the order, equal ranks are taken by
/// fewer items, then by number, so every rank computes the same. REQUIRES: costs are finite and not negative, ranks >
/// 0.
std::vector<int> divide_by_cost(const std::vector<double>& costs, int ranks);

}  // namespace layerpress::dist
