#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/data/calibration_set.h"
#include "layerpress/data/row_slice.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {

/// The selected order of a file's rows: those of the slice of `split`, one after the other or by shuffled_order over
/// the slice. Positions count from 0 in this order.
class RowOrder {
 public:
  /// Counts the rows only when they are to be shuffled. Throws DataError for a split that is not understood.
  RowOrder(TokenRows& rows, const DatasetOptions& options);

  /// The row at `position`, nothing behind the slice. A slice that is not shuffled may reach behind the last row.
  std::optional<std::int64_t> index(std::int64_t position) const;

 private:
  RowSlice slice_;
  std::optional<std::vector<std::int64_t>> shuffled_;
};

}  // namespace layerpress::data
