#pragma once

#include <string>

#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// The preset that the scheme is, with another group size "W4A16 (group 64)"; "" if it is none. Observers do not matter.
std::string scheme_name(const QuantizationScheme& scheme);

/// Whether weights and inputs are rounded to the same numbers. Targets, observers and the order of columns do not matter.
bool same_numbers(const QuantizationScheme& a, const QuantizationScheme& b);

}  // namespace layerpress::quant
