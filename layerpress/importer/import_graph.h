#pragma once

#include <filesystem>

#include "layerpress/model/blocks/architecture.h"

namespace layerpress::importer {

/// The model in a folder that the helper wrote (python/README.md), in our nodes as far as they are certain and in `aten`
/// nodes elsewhere. Throws CheckpointError for a damaged or hostile folder.
model::TracedModel import_graph(const std::filesystem::path& folder);

}  // namespace layerpress::importer
