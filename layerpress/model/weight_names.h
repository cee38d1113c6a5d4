#pragma once

#include "layerpress/model/architecture.h"

namespace layerpress::model {

/// Some models are stored under the names of their modules and under names of earlier releases, which config.json does not
/// tell apart. Renames weights and modules of the traced model as the checkpoint names them, if it holds more of them so.
void use_stored_names(TracedModel& model, const checkpoint::Checkpoint& checkpoint);

/// What else module `name` of the traced model is called by programs that may read the checkpoint: lists of modules in
/// config.json have to name both, and who names a module may use either.
std::vector<std::string> other_names(const TracedModel& model, const std::string& name);

}  // namespace layerpress::model
