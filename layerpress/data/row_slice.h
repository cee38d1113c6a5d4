#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace layerpress::data {

/// Rows [start, stop), counted from 0; without `stop`, to the end.
struct RowSlice {
  std::int64_t start = 0;
  std::optional<std::int64_t> stop;
};

/// Parses the slice of a split: `train`, `train[10:50]`, `train[10:]`, `train[:50]`; for a file the name itself has no
/// meaning. Throws DataError for anything else (including percentages and rows counted from the end).
RowSlice parse_row_slice(const std::string& split);

}  // namespace layerpress::data
