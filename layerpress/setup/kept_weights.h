#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/setup/open_model.h"

namespace layerpress::setup {

/// Chooses what the output has for weights that are stored quantized and that the run leaves as they are: the same codes and scales
/// in the form of compressed-tensors, or values, where there is no such form or `as_values`. Sets `model.kept`.
void keep_quantized_weights(OpenedModel& model, const compression::Assignments& assignments, bool as_values);

/// The weights that a run writes as values although they are stored quantized, in a line; or nothing.
std::string dequantized_text(const OpenedModel& model, const compression::Assignments& assignments);

/// The modules that are stored in four bits or fewer and are quantized again.
std::vector<std::string> requantized_modules(const OpenedModel& model, const compression::Assignments& assignments);

/// A module's scheme in the source in a few words, or "".
std::string source_scheme(const OpenedModel& model, const std::string& module);

}  // namespace layerpress::setup
