#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/dist/division.h"

namespace layerpress::schedule {

/// Rows [first, last) of one of the linears that are compressed together.
struct RowPart {
  std::size_t linear = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t rows() const { return last - first; }
};
std::int64_t rows_of(const std::vector<RowPart>& parts);

/// The division of linears that read one value among ranks.
struct GroupDivision {
  std::vector<std::vector<RowPart>> parts;  ///< by rank, in the order of the stacked rows
  /// The rank that compresses everything, or -1: rows are split, and all ranks need the statistics and factorize them.
  int owner = -1;
};

/// Linears that one modifier compresses together, as input of the division.
struct DividedGroup {
  const compression::Quantizer* modifier = nullptr;
  std::vector<compression::LinearShape> linears;
  double statistics_bytes = 0;  ///< to be sent to the rank that compresses them; 0: all ranks get the statistics anyway
};

/// Divides groups that are compressed in one step, by the cost that Modifier::cost() counts. Either the ranks split a group's
/// stacked rows evenly, at multiples of Modifier::row_step and the kernels' tiles. The work that depends on rows is then divided,
/// but every rank needs the statistics and repeats the work that does not, such as factorizations. Or one rank, its owner, does
/// all of it. Then only that rank needs the statistics, which is half the bytes, and others can work on other groups. The cheapest groups are owned, as many
/// as make the whole step shortest; `first_owner` gets the first one.
std::vector<GroupDivision> divide_groups(const std::vector<DividedGroup>& groups, int ranks, int first_owner,
                                         const dist::DivisionRates& rates);

/// Only splits: the parts of each rank for linears of `rows` rows that may be cut at multiples of `steps` (0: not at
/// all).
std::vector<std::vector<RowPart>> split_rows(const std::vector<std::int64_t>& rows,
                                             const std::vector<std::int64_t>& steps, int ranks);

}  // namespace layerpress::schedule
