#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// A file whose rows are token ids. Rows are counted from 0 and read on request. Not thread-safe.
class TokenRows {
 public:
  virtual ~TokenRows() = default;
  /// The ids of row `index`, or nothing after the last row. Throws DataError naming the faulty line or row.
  virtual std::optional<std::vector<std::int32_t>> row(std::int64_t index) = 0;
  /// The loss mask of row `index`, 0 or 1 for each id. Throws DataError naming the row if it has none.
  virtual std::vector<std::uint8_t> loss_mask(std::int64_t index) = 0;
  /// Whether rows may have images, and the images of the existing row `index`.
  virtual bool has_images() const { return false; }
  virtual SampleImages images(std::int64_t) { return {}; }
  /// The number of rows; may read the whole file.
  virtual std::int64_t count() = 0;
  /// The token offset of each row (rows + 1 entries), if the file has it without reading the rows and no row is empty;
  /// otherwise null.
  virtual const std::vector<std::int64_t>* offsets() const { return nullptr; }
};

/// Opens `path` if it is a file of token ids: .safetensors, or .jsonl / .json (a list of objects) whose first row has a
/// list `input_ids`. Returns null for any other file, which is left to the helper. Throws DataError if a file of these
/// types is missing.
std::unique_ptr<TokenRows> open_token_rows(const std::filesystem::path& path);

}  // namespace layerpress::data
