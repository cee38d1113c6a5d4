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
  const compression::Modifier* modifier = nullptr;
  std::vector<compression::LinearShape> linears;
  bool everywhere = false;  ///< all ranks get the statistics, whoever compresses the linears
};

/// Divides groups that are compressed in one step. Either ranks split a group's stacked rows evenly, at multiples of what
/// Modifier::row_step and the kernels' tiles ask: then the update, rows x K², is divided, but every rank needs the sum of the
/// triangles and factorizes it, K³ / 3. Or one rank, its owner, does all of it: then only that rank needs the sum, which is
/// half the bytes, and others do something else meanwhile, if there are other groups. The cheapest groups are owned, as many
/// as make the whole step shortest; `first_owner` gets the first one.
std::vector<GroupDivision> divide_groups(const std::vector<DividedGroup>& groups, int ranks, int first_owner,
                                         const dist::DivisionRates& rates);

/// Only splits: the parts of each rank for linears of `rows` rows that may be cut at multiples of `steps` (0: not at
/// all).
std::vector<std::vector<RowPart>> split_rows(const std::vector<std::int64_t>& rows,
                                             const std::vector<std::int64_t>& steps, int ranks);

}  // namespace layerpress::schedule
