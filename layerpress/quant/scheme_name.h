#pragma once

#include <string>

#include "layerpress/quant/scheme.h"

namespace layerpress::quant {

/// The preset that the scheme is, with another group size "W4A16 (group 64)"; "" if it is none. Observers do not matter.
std::string scheme_name(const QuantizationScheme& scheme);

}  // namespace layerpress::quant
