#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/modifier.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/run/compression/rank.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// A few short samples for measure_divergences: the first ones, each cut. `tokens`: how many at most.
data::CalibrationSet short_samples(const data::CalibrationSet& set, std::int64_t tokens);

/// Modules whose weights are rounded.
struct Disturbance {
  std::vector<std::string> modules;
  const compression::Quantizer* rounding;  ///< has one scheme and needs no data
};

/// Models that differ from the measured one in what is rounded.
struct Disturbances {
  const setup::RunSetup& setup;  ///< of the measured model; it knows which linears engines fuse
  std::vector<std::vector<Disturbance>> models;
};

/// The KL divergence of each disturbed model's predictions from the original's, in nats per token, on the samples of all ranks. One pass through the
/// layers: a model branches off where its first weight is rounded, and all branches go through the later layers while these
/// are onloaded. In fp32, because the differences are small. Collective.
std::vector<double> measure_divergences(Rank& rank, const Disturbances& disturbances,
                                        const data::CalibrationSet& samples);

}  // namespace layerpress::run
