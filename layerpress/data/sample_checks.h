#pragma once

#include <cstdint>
#include <vector>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"

namespace layerpress::data {

/// Throws UsageError for options that no dataset can fulfil.
void check_options(const DatasetOptions& options);

/// How many samples were found, and how many rows on the way held no tokens.
struct SampleCount {
  std::int64_t samples = 0;
  std::int64_t skipped_empty = 0;
};

/// Throws DataError when there are no samples; a warning event when there are fewer than asked for.
void report_count(const SampleCount& count, const DatasetOptions& options, const RunControl& control);

/// Throws DataError naming the sample and the id when a token is none of the vocabulary's. `numbers` has the place of
/// each sample in the whole set, counted from 0; null when `set` is the whole.
void check_vocabulary(const CalibrationSet& set, const std::vector<std::int64_t>* numbers, std::int64_t vocabulary_size,
                      const DatasetOptions& options);

}  // namespace layerpress::data
