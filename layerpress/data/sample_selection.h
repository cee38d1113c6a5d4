#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/data/calibration_set.h"
#include "layerpress/data/row_order.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {

/// The selected samples, and the number of rows without tokens that were skipped.
struct Selection {
  CalibrationSet set;
  std::int64_t skipped_empty = 0;
};

/// Selects samples from `rows` in the order of RowOrder, reading no more rows than needed. Rows without tokens are
/// replaced by the next ones. Without `concatenate`, a row is a sample, cut to max_seq_length. With it (not for rows
/// that may have images), the rows' tokens are joined and cut into samples of exactly max_seq_length; the remainder is
/// dropped. The helper does the same for the rows that it tokenizes.
Selection select_samples(TokenRows& rows, const DatasetOptions& options, const RunControl& control);

/// Positions [first, last) of the selected order.
struct Positions {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t size() const { return last - first; }
};

/// The rows read at some positions: a sample for each row with tokens.
struct RowPart {
  CalibrationSet set;
  std::int64_t rows = 0;  ///< number of positions that existed
};

/// Reads the rows at `positions`. Rows without tokens are not replaced. Samples are cut to max_seq_length, unless
/// `concatenate` is set: then the caller joins them.
RowPart read_rows(TokenRows& rows, const RowOrder& order, const Positions& positions, const DatasetOptions& options,
                  const RunControl& control);

/// One row: its tokens, its loss mask if that was requested, and its images if rows may have images.
struct SelectedRow {
  std::vector<std::int32_t> tokens;
  std::vector<std::uint8_t> loss_mask = {};
  std::optional<SampleImages> images = std::nullopt;
};

/// The row at `position` of the order, or nothing after its end.
std::optional<SelectedRow> row_at(TokenRows& rows, const RowOrder& order, std::int64_t position,
                                  const DatasetOptions& options);

/// Appends one sample, of at most `limit` tokens.
void append_sample(CalibrationSet& set, const SelectedRow& row, std::int64_t limit);

}  // namespace layerpress::data
