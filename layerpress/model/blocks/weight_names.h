#pragma once

#include "layerpress/model/blocks/architecture.h"

namespace layerpress::model {

/// Renames weights and modules of the traced model to the names in the checkpoint, if more of these exist there. Some
/// models are stored under the names of their modules or under those of earlier releases, and config.json does not say
/// which.
void use_stored_names(TracedModel& model, const checkpoint::Checkpoint& checkpoint);

/// Other names of module `name` that programs reading the checkpoint may use. Lists of modules in config.json must
/// contain all of them, and users may name a module by any of them.
std::vector<std::string> other_names(const TracedModel& model, const std::string& name);

}  // namespace layerpress::model
