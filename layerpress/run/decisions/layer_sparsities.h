#pragma once

#include "layerpress/run/decisions/decisions.h"

namespace layerpress::run {

/// How sparse each layer becomes where a modifier that prunes has a sparsity_profile: by the layer's share of outliers among the products of
/// weights and inputs of the original model (OWL, Yin et al. 2024, arXiv 2310.05175).
Decision sparsities_decision();

}  // namespace layerpress::run
