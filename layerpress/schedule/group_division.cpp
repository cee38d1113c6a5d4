#include "layerpress/schedule/group_division.h"

#include <algorithm>
#include <numeric>

#include "layerpress/dist/division.h"

namespace layerpress::schedule {
namespace {

/// Kernels process this many rows at once.
constexpr std::int64_t kTileRows = 16;

/// Positions in the stack of all rows at which it may be cut.
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

GroupDivision split(const DividedGroup& group, int ranks) {
  std::vector<std::int64_t> rows, steps;
  for (const compression::LinearShape& linear : group.linears) {
    rows.push_back(linear.rows);
    steps.push_back(group.modifier->row_step(linear));
  }
  return {split_rows(rows, steps, ranks), -1};
}

GroupDivision owned_by(const DividedGroup& group, int owner, int ranks) {
  GroupDivision division{std::vector<std::vector<RowPart>>(static_cast<std::size_t>(ranks)), owner};
  for (std::size_t i = 0; i < group.linears.size(); ++i)
    division.parts[static_cast<std::size_t>(owner)].push_back({i, 0, group.linears[i].rows});
  return division;
}

/// Seconds of a group: for all ranks if it is split; for its owner alone; and for all ranks to send it to the owner.
struct GroupSeconds {
  double split = 0, owner = 0, sending = 0;
};

double seconds_of_parts(const DividedGroup& group, const std::vector<RowPart>& parts,
                        const dist::DivisionRates& rates) {
  if (parts.empty()) return 0;
  std::vector<compression::LinearShape> linears;
  for (const RowPart& part : parts) {
    linears.push_back(group.linears[part.linear]);
    linears.back().rows = part.rows();
  }
  double flops = 0;
  for (const auto& [phase, count] : group.modifier->cost(linears).flops) flops += count;
  return flops / rates.update_flops;
}

GroupSeconds seconds_of(const DividedGroup& group, const GroupDivision& split, const dist::DivisionRates& rates) {
  GroupSeconds seconds;
  for (const std::vector<RowPart>& parts : split.parts)
    seconds.split = std::max(seconds.split, seconds_of_parts(group, parts, rates));
  seconds.owner = seconds_of_parts(group, owned_by(group, 0, 1).parts.front(), rates);
  if (group.statistics_bytes > 0)
    seconds.sending = group.statistics_bytes / rates.network_bytes + rates.operation_seconds;
  seconds.split += 2 * seconds.sending;  // to everybody it is twice as far
  return seconds;
}

/// Assigns groups to owners, cheapest first, as long as this makes the step shorter.
class Owners {
 public:
  Owners(const std::vector<GroupSeconds>& seconds, int ranks, int first)
      : seconds_(seconds), first_(first), busy_(static_cast<std::size_t>(ranks), 0.0) {
    order_.resize(seconds.size());
    std::iota(order_.begin(), order_.end(), std::size_t{0});
    std::stable_sort(order_.begin(), order_.end(),
                     [&](std::size_t a, std::size_t b) { return seconds[a].owner < seconds[b].owner; });
  }

  /// The owner of each group; -1: the group is split.
  std::vector<int> choose() {
    double split = 0, sending = 0;
    for (const GroupSeconds& group : seconds_) split += group.split;
    double shortest = split;
    std::size_t count = 0;
    std::vector<int> owners(seconds_.size(), -1);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const GroupSeconds& group = seconds_[order_[i]];
      owners[order_[i]] = give(group.owner);
      split -= group.split;
      sending += group.sending;
      const double whole = split + sending + *std::max_element(busy_.begin(), busy_.end());
      if (whole < shortest) shortest = whole, count = i + 1;
    }
    for (std::size_t i = count; i < order_.size(); ++i) owners[order_[i]] = -1;
    return owners;
  }

 private:
  /// Assigns a group to the rank with the least work, beginning with the first owner.
  int give(double seconds) {
    std::size_t idle = static_cast<std::size_t>(first_) % busy_.size();
    for (std::size_t next = 0; next < busy_.size(); ++next) {
      const std::size_t rank = (static_cast<std::size_t>(first_) + next) % busy_.size();
      if (busy_[rank] < busy_[idle]) idle = rank;
    }
    busy_[idle] += seconds;
    return static_cast<int>(idle);
  }

  const std::vector<GroupSeconds>& seconds_;
  int first_;
  std::vector<double> busy_;  // seconds, by rank
  std::vector<std::size_t> order_;
};

}  // namespace

std::int64_t rows_of(const std::vector<RowPart>& parts) {
  std::int64_t rows = 0;
  for (const RowPart& part : parts) rows += part.rows();
  return rows;
}

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

std::vector<GroupDivision> divide_groups(const std::vector<DividedGroup>& groups, int ranks, int first_owner,
                                         const dist::DivisionRates& rates) {
  std::vector<GroupDivision> divisions;
  std::vector<GroupSeconds> seconds;
  for (const DividedGroup& group : groups) {
    divisions.push_back(split(group, ranks));
    seconds.push_back(seconds_of(group, divisions.back(), rates));
  }
  if (ranks == 1) return divisions;
  const std::vector<int> owners = Owners(seconds, ranks, first_owner).choose();
  for (std::size_t i = 0; i < groups.size(); ++i)
    if (owners[i] >= 0) divisions[i] = owned_by(groups[i], owners[i], ranks);
  return divisions;
}

}  // namespace layerpress::schedule
