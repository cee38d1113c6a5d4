#pragma once

#include "layerpress/compression/assignments.h"
#include "layerpress/setup/opening/open_model.h"
#include "layerpress/target/written_targets.h"

namespace layerpress::setup {

/// The compressed modules of a result, and those that a reader could take for compressed, by all names that readers know them by.
target::CompressedModules compressed_modules(const OpenedModel& model, const compression::Assignments& assignments);

}  // namespace layerpress::setup
