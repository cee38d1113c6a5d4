#pragma once

#include "layerpress/checkpoint/checkpoint.h"
#include "layerpress/source/stored_weight.h"
#include "layerpress/verification/findings.h"

namespace layerpress::verification {

/// A tensor that is not a part of a quantized weight: NaN and infinity are faults, a matrix of zeros is a warning. A scale of inputs, keys
/// or values ("input_scale", "k_scale") must be positive.
void check_plain(const checkpoint::Checkpoint& stored, const std::string& name, Findings& findings);

/// The scales of a quantized weight, without its codes: finite, not negative, none much greater than the others.
void check_scales(const checkpoint::Checkpoint& stored, const source::StoredWeight& weight, Findings& findings);

/// Its codes: readable, in their range, seldom at its ends, and not the same in whole groups. REQUIRES: check_scales found no fault.
void check_codes(const source::StoredWeight& weight, Findings& findings);

}  // namespace layerpress::verification
