#pragma once

#include <string>
#include <vector>

#include "layerpress/compression/assignments.h"
#include "layerpress/compression/edit.h"
#include "layerpress/setup/assignment/assignment.h"

namespace layerpress::setup {

/// The modules of a model, for modifiers that choose among all of them.
std::vector<compression::ModelModule> modules_of(const model::TracedModel& traced);

/// An assignment of a weight that nothing changes yet.
compression::Assignment assignment_of(const OpenedModel& model, const std::string& weight,
                                      const quant::QuantizationScheme& scheme);

/// Puts the recipe's edits before the quantizers of the linears that they change; linears without one stay dense. Throws RecipeError
/// naming the module where a recipe edits what it has quantized before.
void add_edits(const OpenedModel& model, const Modifiers& modifiers, compression::Assignments& assignments);

/// Throws RecipeError where a transform changes weights that stay uncompressed and are parts of the source's stacked or fused tensors.
void check_transformed(const OpenedModel& model, const compression::Assignments& assignments);

}  // namespace layerpress::setup
