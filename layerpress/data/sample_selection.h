#pragma once

#include <cstdint>

#include "layerpress/data/calibration_set.h"
#include "layerpress/data/token_rows.h"

namespace layerpress::data {

/// The samples that were taken, and how many rows on the way held no tokens.
struct Selection {
  CalibrationSet set;
  std::int64_t skipped_empty = 0;
};

/// Takes samples from `rows` as `options` says, reading no more rows than needed: the slice of `split`; then in order,
/// or by shuffled_order over the slice; rows without tokens are skipped and the next ones taken instead.
/// Without `concatenate` a row is a sample, cut to max_seq_length; with it the rows' tokens are joined and cut into
/// samples of exactly max_seq_length, the rest dropped. The helper does the same for what it tokenizes.
Selection select_samples(TokenRows& rows, const DatasetOptions& options, const RunControl& control);

}  // namespace layerpress::data
