#pragma once

#include <filesystem>
#include <string>

#include "layerpress/run/compression/compression_run.h"

namespace layerpress::run {

/// What a run compresses, and to what: "llama to W4A16 (group 64)".
std::string compressed_words(const OneshotOptions& options, const setup::RunSetup& setup);

/// The first lines of a run's log: what it does, with how much data, where it runs, what that takes, and how it computes.
/// `folder`: where it writes.
void announce(const Rank& rank, const Work& work, const std::string& what, const std::filesystem::path& folder);

}  // namespace layerpress::run
