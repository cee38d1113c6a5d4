#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/data/calibration_set.h"
#include "layerpress/data/row_slice.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {

/// The selected order of a file's rows: the rows in the slice of `split`, in file order or shuffled by shuffled_order.
/// Positions count from 0 in this order.
class RowOrder {
 public:
  /// Counts the rows only if they are shuffled. Throws DataError for a split that cannot be parsed.
  RowOrder(TokenRows& rows, const DatasetOptions& options);

  /// The row at `position`, or nothing after the end of the slice. An unshuffled slice may extend past the last row.
  std::optional<std::int64_t> index(std::int64_t position) const;

 private:
  RowSlice slice_;
  std::optional<std::vector<std::int64_t>> shuffled_;
};

}  // namespace layerpress::data
