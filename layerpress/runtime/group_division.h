#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/runtime/modifier.h"

namespace layerpress::runtime {

/// Rows [first, last) of one of the linears that are compressed together.
struct RowPart {
  std::size_t linear = 0;
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t rows() const { return last - first; }
};

/// Who compresses what of linears that read one value.
struct GroupDivision {
  std::vector<std::vector<RowPart>> parts;  ///< by rank, in the order of the stacked rows
  /// The rank that does everything, or -1: rows are split, and all ranks need the statistics and factorize them.
  int owner = -1;
};

/// What the division goes by, the same on all ranks: rough speeds of one rank, and the shapes. Constants and their
/// measurements: docs/distributed.md.
struct DivisionRates {
  double update_flops = 6e10;       ///< per second, of the column updates on one thread
  double network_bytes = 1e9;       ///< per second and rank, in collective operations
  double operation_seconds = 1e-4;  ///< that every collective operation takes, however small
};

/// Splits the stacked rows evenly over ranks, at multiples of what Modifier::row_step and the kernels' tiles ask; or leaves
/// the group to one rank, `owner`, when sending its triangle to everybody costs more than splitting saves (a factorization,
/// K³ / 3, is the same in both; the update, rows x K², is divided; an all-reduce sends twice what a reduce does).
GroupDivision divide_group(const Modifier& modifier, const std::vector<LinearShape>& linears, int ranks, int owner,
                           const DivisionRates& rates);

/// Only the splitting: parts by rank for linears of `rows` rows that may be cut at multiples of `steps` (0: not at all).
std::vector<std::vector<RowPart>> split_rows(const std::vector<std::int64_t>& rows,
                                             const std::vector<std::int64_t>& steps, int ranks);

}  // namespace layerpress::runtime
