#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/run/rank.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// A few short texts for measure_divergences: the first samples without images, each cut. `tokens`: how many at most.
data::CalibrationSet short_texts(const data::CalibrationSet& set, std::int64_t tokens);

/// What is rounded in turn, and how.
struct Disturbances {
  const setup::RunSetup& setup;                 ///< of the measured model; it knows which linears engines fuse
  std::vector<std::vector<std::string>> units;  ///< modules that are rounded together
  const compression::Quantizer& rounding;       ///< has one scheme and needs no data
};

/// The KL divergence of the model's predictions from the original's, in nats per token, where the weights of one unit alone are rounded:
/// for each unit, on the texts of all ranks. One pass through the layers: a unit's model branches off at the unit's layer, and all
/// branches go through the later layers while these are onloaded. In fp32, because the differences are small. Collective.
std::vector<double> measure_divergences(Rank& rank, const Disturbances& disturbances,
                                        const data::CalibrationSet& texts);

}  // namespace layerpress::run
