#pragma once

#include <cstdint>
#include <string>

#include "layerpress/base/progress.h"
#include "layerpress/data/calibration_set.h"
#include "layerpress/model/blocks/architecture.h"

namespace layerpress::setup {

/// The least number of tokens of a sample that the imported graph holds for.
std::int64_t least_tokens(const model::TracedModel& model);

/// "3 samples of DATASET are left out, because ..."
std::string short_samples_text(std::size_t count, std::int64_t least, const std::string& dataset);

/// Throws DataError, which names the sample and what to do, if a sample of `dataset` has more or fewer tokens than the
/// imported graph holds for.
void require_lengths(const model::TracedModel& model, const data::CalibrationSet& set, const std::string& dataset);

std::int64_t longest_sample(const data::CalibrationSet& set);

/// Warns of samples that are longer than a model's context (0: not known): some models compute nonsense for positions that they were
/// not made for.
void warn_beyond_context(std::int64_t longest, std::int64_t context, const RunControl& control);

}  // namespace layerpress::setup
