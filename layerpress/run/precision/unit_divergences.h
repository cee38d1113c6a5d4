#pragma once

#include <vector>

#include "layerpress/data/calibration_set.h"
#include "layerpress/run/precision/disturbed_models.h"

namespace layerpress::run {

/// A few short samples for measure_divergences: the first ones, each cut; with a loss mask those in which a token counts, or, where there
/// are none, all without the mask. `tokens`: how many at most.
data::CalibrationSet short_samples(const data::CalibrationSet& set, std::int64_t tokens);

/// The KL divergence of each disturbed model's predictions from the original's, in nats per token, on the samples of all ranks. One pass through the
/// layers: a model branches off where its first weight is rounded, and all branches go through the later layers while these
/// are onloaded. In fp32, because the differences are small. Collective.
std::vector<double> measure_divergences(Rank& rank, const Disturbances& disturbances,
                                        const data::CalibrationSet& samples);

}  // namespace layerpress::run
