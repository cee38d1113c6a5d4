#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// ErrorPropagationModifier: moves linears towards the original model's outputs as `best` does (kernels/solver/error_propagation.h), but leaves
/// them dense, so that they make up for what was compressed before them. Arguments: targets (["lm_head"]), ignore ([]), strength (1; 0 to
/// 2), damping (at least 0; 3 columns / tokens) and residual (0.4; 0 to 2). Linears whose encoding moves weights itself are left to it.
/// A head that shares the embedding's weight gets one of its own.
Kind error_propagation_modifier();

}  // namespace layerpress::modifier
