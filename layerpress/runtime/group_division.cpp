#include "layerpress/runtime/group_division.h"

#include <algorithm>
#include <numeric>

#include "layerpress/dist/division.h"

namespace layerpress::runtime {
namespace {

/// Kernels work on this many rows at once.
constexpr std::int64_t kTileRows = 16;

/// Places in the stack of all rows where it may be cut.
std::vector<std::int64_t> cuts(const std::vector<std::int64_t>& rows, const std::vector<std::int64_t>& steps) {
  std::vector<std::int64_t> places = {0};
  std::int64_t before = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (steps[i] > 0) {
      const std::int64_t step = std::lcm(steps[i], kTileRows);
      for (std::int64_t row = step; row < rows[i]; row += step) places.push_back(before + row);
    }
    before += rows[i];
    places.push_back(before);
  }
  return places;
}

std::int64_t nearest(const std::vector<std::int64_t>& places, std::int64_t wanted) {
  const auto above = std::lower_bound(places.begin(), places.end(), wanted);
  if (above == places.begin()) return *above;
  if (above == places.end()) return places.back();
  return *above - wanted < wanted - *(above - 1) ? *above : *(above - 1);
}

/// The update's share that splitting saves against what sending the triangle to everybody costs.
bool is_worth_splitting(const Modifier& modifier, const std::vector<LinearShape>& linears, int ranks,
                        const DivisionRates& rates) {
  if (!modifier.statistics_wanted().gram) return true;

  const auto columns = static_cast<double>(linears.front().columns);
  double rows = 0;
  for (const LinearShape& linear : linears) rows += static_cast<double>(linear.rows);
  const double saved = rows * columns * columns / rates.update_flops * (ranks - 1) / ranks;
  const double triangle = columns * columns / 2 * sizeof(float);
  return saved > triangle / rates.network_bytes + rates.operation_seconds;
}

}  // namespace

std::vector<std::vector<RowPart>> split_rows(const std::vector<std::int64_t>& rows,
                                             const std::vector<std::int64_t>& steps, int ranks) {
  const std::vector<std::int64_t> places = cuts(rows, steps);
  const std::int64_t total = places.back();
  std::vector<std::vector<RowPart>> parts(static_cast<std::size_t>(ranks));
  std::size_t linear = 0;
  std::int64_t before = 0, from = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::int64_t to = std::max(from, nearest(places, dist::partition(total, rank, ranks).last));
    while (from < to) {
      while (before + rows[linear] <= from) before += rows[linear++];
      const std::int64_t last = std::min(to, before + rows[linear]);
      parts[static_cast<std::size_t>(rank)].push_back({linear, from - before, last - before});
      from = last;
    }
  }
  return parts;
}

GroupDivision divide_group(const Modifier& modifier, const std::vector<LinearShape>& linears, int ranks, int owner,
                           const DivisionRates& rates) {
  std::vector<std::int64_t> rows, steps;
  for (const LinearShape& linear : linears) {
    rows.push_back(linear.rows);
    steps.push_back(modifier.row_step(linear));
  }
  GroupDivision division;
  if (ranks == 1 || owner < 0 || is_worth_splitting(modifier, linears, ranks, rates)) {
    division.parts = split_rows(rows, steps, ranks);
    return division;
  }
  division.owner = owner;
  division.parts.resize(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < rows.size(); ++i)
    division.parts[static_cast<std::size_t>(owner)].push_back({i, 0, rows[i]});
  return division;
}

}  // namespace layerpress::runtime
