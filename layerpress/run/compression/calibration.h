#pragma once

#include <cstdint>

#include "layerpress/data/calibration_set.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/setup/rank_agreement.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// The data of a run.
struct Calibration {
  data::CalibrationSet set;      ///< this rank's part
  Json identity;                 ///< identity of all ranks' parts together; null without data
  std::int64_t all_tokens = 0;   ///< tokens of all ranks that count in statistics
  std::int64_t all_samples = 0;  ///< samples of all ranks
};

/// This rank's part of the calibration set, empty for a pipeline that takes no data. Throws DataError for data that
/// cannot be used. Collective.
data::CalibrationSet load_set(const OneshotOptions& options, const setup::RunSetup& setup,
                              const setup::DataDivision& division, dist::Group& group, const RunControl& control);

/// Loads the data of a run, measured as phase "data". Throws DataError when the run needs samples and there are none.
/// Collective.
Calibration load_calibration(Rank& rank, const setup::RunSetup& setup, const setup::DataDivision& division);

}  // namespace layerpress::run
