#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// A file whose rows are token ids. Rows are counted from 0 and read when asked for. Not thread-safe.
class TokenRows {
 public:
  virtual ~TokenRows() = default;
  /// The ids of row `index`, nothing behind the last row. Throws DataError naming the line or row that is faulty.
  virtual std::optional<std::vector<std::int32_t>> row(std::int64_t index) = 0;
  /// Whether rows may have images, and those of row `index`, which exists.
  virtual bool has_images() const { return false; }
  virtual SampleImages images(std::int64_t) { return {}; }
  /// How many rows there are; may read the whole file.
  virtual std::int64_t count() = 0;
  /// Where each row begins among all tokens (rows + 1 entries), when the file says so without being read and all its
  /// rows hold tokens; else null.
  virtual const std::vector<std::int64_t>* offsets() const { return nullptr; }
};

/// Opens `path` when it is a file of token ids: .safetensors, or .jsonl / .json (a list of objects) whose first row has
/// a list `input_ids`. Returns null for any other file, which is the helper's to read. Throws DataError when a file
/// of these types is missing.
std::unique_ptr<TokenRows> open_token_rows(const std::filesystem::path& path);

}  // namespace layerpress::data
