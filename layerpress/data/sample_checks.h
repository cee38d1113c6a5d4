#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// Throws UsageError for options that no dataset can satisfy.
void check_options(const DatasetOptions& options);

/// The number of samples found, and of rows without tokens that were skipped.
struct SampleCount {
  std::int64_t samples = 0;
  std::int64_t skipped_empty = 0;
};

/// Throws DataError if there are no samples; sends a warning if there are fewer than requested.
void report_count(const SampleCount& count, const DatasetOptions& options, const RunControl& control);

/// Throws DataError if a loss mask leaves no token to calibrate on.
void check_loss_mask(const CalibrationSet& set, const DatasetOptions& options);

/// Throws DataError naming the sample and the id if a token is outside the vocabulary. `numbers` contains the position
/// of each sample in the whole set, counted from 0; null if `set` is the whole set.
void check_vocabulary(const CalibrationSet& set, const std::vector<std::int64_t>* numbers, std::int64_t vocabulary_size,
                      const DatasetOptions& options);

}  // namespace layerpress::data
