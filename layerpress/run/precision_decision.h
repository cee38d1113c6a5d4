#pragma once

#include <cstdint>

#include "layerpress/base/json.h"
#include "layerpress/oneshot.h"
#include "layerpress/run/precision_units.h"

namespace layerpress::run {

/// What a choice follows from, besides the model and the data: options by name.
Json precision_request(const OneshotOptions& options);

/// The choice with the least predicted loss within --target-bits or --target-size, in the form of layerpress::mixed_precision
/// (oneshot.h). `other_bytes`: what the result holds besides the weights of the units. Throws UsageError for a limit that no choice keeps, and
/// for one that leaves everything as it is.
Json precision_decision(const OneshotOptions& options, const MeasuredUnits& measured, std::uint64_t other_bytes);

}  // namespace layerpress::run
