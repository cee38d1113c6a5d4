#pragma once

#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/setup/run_setup.h"

namespace layerpress::run {

/// A linear whose statistics a modifier wanted and that no token of the data reached: its weight was rounded to nearest.
struct UncalibratedLinear {
  std::string module;
  std::string why;  ///< "no sample has images"
};

/// Those among a summary's module reports (fields module, tokens).
std::vector<UncalibratedLinear> uncalibrated_linears(const setup::RunSetup& setup, const Json& modules);

/// One line for each reason, with the number of linears and some of their names.
std::vector<std::string> described(const std::vector<UncalibratedLinear>& linears);

}  // namespace layerpress::run
