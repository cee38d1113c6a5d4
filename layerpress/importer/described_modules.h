#pragma once

#include "layerpress/importer/exported/layouts.h"
#include "layerpress/importer/exported/module_names.h"
#include "layerpress/model/blocks/architecture.h"

namespace layerpress::importer {

/// Adds the groups of linears that engines usually run as one, where the model has all of a group.
void add_fused_modules(model::TracedModel& model);

/// Adds the linears of the exported model that no recipe can reach, with the reason where it shows.
void add_left_out(model::TracedModel& model, const ExportedGraph& exported, const Layouts& layouts,
                  const ModuleNames& names);

/// Adds the names that modules have in the exported model beside those in the checkpoint.
void add_aliases(model::TracedModel& model, const ExportedGraph& exported, const ModuleNames& names);

}  // namespace layerpress::importer
