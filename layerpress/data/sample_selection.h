#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "layerpress/data/calibration_set.h"
#include "layerpress/data/row_order.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {

/// The samples that were taken, and how many rows on the way held no tokens.
struct Selection {
  CalibrationSet set;
  std::int64_t skipped_empty = 0;
};

/// Takes samples from `rows` as `options` says, reading no more rows than needed: in the order of RowOrder; rows
/// without tokens are skipped and the next ones taken instead. Without `concatenate` a row is a sample, cut to
/// max_seq_length; with it (not where rows may have images) the rows' tokens are joined and cut into samples of exactly max_seq_length, the rest
/// dropped. The helper does the same for what it tokenizes.
Selection select_samples(TokenRows& rows, const DatasetOptions& options, const RunControl& control);

/// Positions [first, last) of the selected order.
struct Positions {
  std::int64_t first = 0;
  std::int64_t last = 0;
  std::int64_t size() const { return last - first; }
};

/// What was read at some positions: a sample for each row that holds tokens.
struct RowPart {
  CalibrationSet set;
  std::int64_t rows = 0;  ///< how many of the positions existed
};

/// Reads the rows at `positions`, none instead of those without tokens; cut to max_seq_length unless `concatenate` is
/// set: then the caller joins them.
RowPart read_rows(TokenRows& rows, const RowOrder& order, const Positions& positions, const DatasetOptions& options,
                  const RunControl& control);

/// One row: its tokens, and its images if the rows may have some.
struct SelectedRow {
  std::vector<std::int32_t> tokens;
  std::optional<SampleImages> images = std::nullopt;
};

/// The row at `position` of the order; nothing behind its end.
std::optional<SelectedRow> row_at(TokenRows& rows, const RowOrder& order, std::int64_t position);

/// Appends one sample, of at most `limit` tokens.
void append_sample(CalibrationSet& set, const SelectedRow& row, std::int64_t limit);

}  // namespace layerpress::data
