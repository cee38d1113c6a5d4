#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace layerpress::data {

/// Rows [start, stop), counted from 0; no `stop` means to the end.
struct RowSlice {
  std::int64_t start = 0;
  std::optional<std::int64_t> stop;
};

/// Takes the slice of a split name: `train`, `train[10:50]`, `train[10:]`, `train[:50]`; the name itself means nothing
/// for a file. Throws DataError for anything else (shares in percent and rows counted from the end included).
RowSlice parse_row_slice(const std::string& split);

}  // namespace layerpress::data
