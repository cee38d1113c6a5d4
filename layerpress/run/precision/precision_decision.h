#pragma once

#include <cstdint>

#include "layerpress/base/json.h"
#include "layerpress/oneshot.h"
#include "layerpress/recipe/candidate_schemes.h"
#include "layerpress/run/precision/precision_units.h"

namespace layerpress::run {

/// What a choice follows from, besides the model and the data: options by name.
Json precision_request(const OneshotOptions& options);

/// Throws UsageError for a limit that no choice keeps, and for one that leaves everything as it is, which the sizes of the units say.
/// `other_bytes`: what the result holds besides the weights of the units.
void require_useful_limit(const OneshotOptions& options, const MeasuredUnits& units, std::uint64_t other_bytes);

/// The choice with the least predicted loss within --target-bits or --target-size, in the form of layerpress::mixed_precision
/// (oneshot.h). `vocabulary`: embeddings and the output, which have a type of their own; without a name: none. Throws as require_useful_limit, and for a limit that the measurements leave no use for.
Json precision_decision(const OneshotOptions& options, const MeasuredUnits& measured, std::uint64_t other_bytes,
                        const recipe::CandidateTargets& vocabulary);

}  // namespace layerpress::run
