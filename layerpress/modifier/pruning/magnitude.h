#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// MagnitudePruningModifier: of each weight matrix, the ⌊N K final_sparsity⌋ elements with the smallest |w| become zero, and those equal
/// to the last one. It needs no data. Arguments as LLM Compressor's, which prunes step by step while a model is trained: targets
/// and final_sparsity are required; init_sparsity, update_scheduler, scheduler_args and leave_enabled have no effect in one shot;
/// mask_structure other than "unstructured" and apply_globally are refused.
Kind magnitude_pruning_modifier();

/// ConstantPruningModifier: elements that are zero (|w| <= 1e-8) stay zero, whatever later entries of the recipe do with the weights of
/// its targets. Arguments: targets, required. It needs no data.
Kind constant_pruning_modifier();

}  // namespace layerpress::modifier
