#include "layerpress/dist/division.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <queue>
#include <tuple>

#include "layerpress/base/error.h"

namespace layerpress::dist {

Slice partition(std::int64_t count, int rank, int ranks) {
  if (count < 0 || rank < 0 || rank >= ranks)
    throw InternalError("[dist.partition] part {} of {} of {} items", rank, ranks, count);
  // floor(count * i / ranks), in two parts because the product may not fit.
  const auto bound = [&](std::int64_t i) { return count / ranks * i + count % ranks * i / ranks; };
  return {bound(rank), bound(rank + 1)};
}

std::vector<int> divide_by_cost(const std::vector<double>& costs, int ranks) {
  if (ranks < 1) throw InternalError("[dist.divide] {} items among {} ranks", costs.size(), ranks);
  if (!std::all_of(costs.begin(), costs.end(), [](double cost) { return std::isfinite(cost) && cost >= 0; }))
    throw InternalError("[dist.divide] a cost is negative or not finite");
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return costs[a] > costs[b]; });

  using Load = std::tuple<double, std::size_t, int>;  // cost, items, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> least_loaded;
  for (int rank = 0; rank < ranks; ++rank) least_loaded.emplace(0.0, std::size_t{0}, rank);
  std::vector<int> owners(costs.size());
  for (const std::size_t item : order) {
    const auto [cost, items, rank] = least_loaded.top();
    least_loaded.pop();
    owners[item] = rank;
    least_loaded.emplace(cost + costs[item], items + 1, rank);
  }
  return owners;
}

}  // namespace layerpress::dist
