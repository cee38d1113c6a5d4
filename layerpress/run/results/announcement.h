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

/// Warns of what the recipe does not do here, or of what engines cannot run. Plans say it, too.
void say_notes(const OneshotOptions& options, const setup::RunSetup& setup, const RunControl& control);

/// Says what becomes of weights that the source stores quantized, what rewrites change, and which tensors the graph does not read.
void say_source(const Rank& rank, const setup::RunSetup& setup);

}  // namespace layerpress::run
