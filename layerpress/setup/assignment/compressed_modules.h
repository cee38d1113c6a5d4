#pragma once

#include "layerpress/compression/assignments.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/target/target.h"

namespace layerpress::setup {

/// The compressed modules of a result, and those that a reader could take for compressed, by all names that readers know them by.
target::CompressedModules compressed_modules(const OpenedModel& model, const compression::Assignments& assignments);

/// Whether the result has a head apart from the embedding, with which the model shares its weight.
bool unties_head(const OpenedModel& model, const compression::Assignments& assignments);

/// What is compressed besides linears of their own.
target::CompressedParts compressed_parts(const OpenedModel& model, const compression::Assignments& assignments);

}  // namespace layerpress::setup
