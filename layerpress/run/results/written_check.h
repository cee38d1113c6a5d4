#pragma once

#include <filesystem>

#include "layerpress/setup/run_setup.h"
#include "layerpress/verification/findings.h"

namespace layerpress::run {

/// The cheap part of `verify` for a folder that this run has written: headers, names and shapes of all tensors, config.json against them,
/// scales. Reads no codes. Nothing of other targets.
verification::Findings check_written(const setup::RunSetup& setup, const std::filesystem::path& folder);

}  // namespace layerpress::run
