#pragma once

#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// SparseGPT (arXiv 2301.00774, kernels/solver/sparsify.h). Arguments besides those of pruning.h: block_size 128, dampening_frac 0.01,
/// preserve_sparsity_mask false (weights that are 0 stay 0; a weight with more zeros than the sparsity is an error). Weights that an
/// earlier edit has pruned always stay 0.
///
/// If the Gram matrix cannot be factorized: dampening x10 up to three times, then double precision, then magnitudes without
/// compensation; the report says which. Columns that no token touched become zero.
Kind sparsegpt_modifier();

}  // namespace layerpress::modifier
