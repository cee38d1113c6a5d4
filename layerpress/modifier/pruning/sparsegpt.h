#pragma once

#include <memory>
#include <string>
#include <vector>

#include "layerpress/base/json.h"
#include "layerpress/compression/modifier.h"
#include "layerpress/modifier/arguments/argument.h"

namespace layerpress::modifier {

/// SparseGPT (arXiv 2301.00774, kernels/solver/sparsify.h). Arguments besides those of pruning.h: block_size 128, dampening_frac 0.01,
/// preserve_sparsity_mask false (weights that are 0 stay 0; a weight with more zeros than the sparsity is an error). Weights that an
/// earlier edit has pruned always stay 0.
///
/// If the Gram matrix cannot be factorized: dampening x10 up to three times, then double precision, then magnitudes without
/// compensation; the report says which. Columns that no token touched become zero.
std::unique_ptr<compression::Modifier> make_sparsegpt_modifier(const OrderedJson& arguments, const std::string& where);

std::vector<Argument> sparsegpt_arguments();

}  // namespace layerpress::modifier
